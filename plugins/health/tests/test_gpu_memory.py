"""GPUs and who holds their memory, as nvidia-smi, NVML and AMD's driver tell it. No GPU is needed.

The form of nvidia-smi's answers is that of its manual (``--help-query-gpu``, ``--help-query-compute-apps``), and of
answers in public issues (NVIDIA/dcgm-exporter 94, wookayin/gpustat 18); the numbers are made up.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastic_health.gpu import findings
from elastic_health.gpu_memory import (
    Amd,
    Gpu,
    GpuError,
    Holder,
    Nvml,
    Smi,
    describe_holder,
    find_source,
    visible_uuids,
)
from elastic_health.holders import MemoryWait, is_of_round

ONE, TWO = "GPU-d0180485-9584-433c-6782-c335d5df2cb3", "GPU-777ead31-954e-837f-590f-6c4974d8e571"
GPUS = f"0, {ONE}, 81559, 80994\n1, {TWO}, 81559, 1024\n"
HEALTHY = f"0, {ONE}, 81559, 80994\n1, {TWO}, 81559, 80994\n"
LOST = f"0, {ONE}, 81559, 80994\n1, {TWO}, [GPU is lost], [GPU is lost]\n"
APPS = f"{TWO}, 999999, 78430, python, with a comma\n{TWO}, 999998, [N/A], [Not Found]\n"
MIB = 1 << 20


@pytest.fixture
def smi(tmp_path: Path) -> Path:
    """A directory with an nvidia-smi that answers with the files ``gpu`` and ``compute-apps`` beside it."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\nname="${1#--query-}"\ncat "$(dirname "$0")/${name%%=*}"\n'
        'case "$2" in --format=csv,noheader,nounits) exit "$(cat "$(dirname "$0")/code")";; *) exit 99;; esac\n'
    )
    program.chmod(0o755)
    for name, text in (("gpu", GPUS), ("compute-apps", APPS), ("code", "0")):
        (tmp_path / name).write_text(text)
    return tmp_path


def source(smi: Path) -> Smi:
    return Smi(str(smi / "nvidia-smi"))


def test_nvidia_smi_tells_the_gpus_and_who_holds_their_memory(smi: Path) -> None:
    assert source(smi).gpus() == [Gpu(ONE, 81559 * MIB, 80994 * MIB), Gpu(TWO, 81559 * MIB, 1024 * MIB)]
    assert source(smi).holders() == [
        Holder(999999, TWO, 78430 * MIB, "python,with a comma"),
        Holder(999998, TWO, None, ""),
    ]


@pytest.mark.parametrize("text", ["", "No running processes found\n"])
def test_without_processes_nobody_holds_memory(smi: Path, text: str) -> None:
    (smi / "compute-apps").write_text(text)
    assert source(smi).holders() == []


def test_a_gpu_that_is_lost_is_named(smi: Path) -> None:
    (smi / "gpu").write_text(LOST)
    with pytest.raises(GpuError, match=rf"GPU 1 does not answer: 1, {TWO}, \[GPU is lost\]"):
        source(smi).gpus()


def test_the_error_of_nvidia_smi_is_told(smi: Path) -> None:
    (smi / "code").write_text("15")
    (smi / "gpu").write_text("Unable to determine the device handle for GPU0: 0000:3B:00.0: Unknown Error\n")
    assert findings(source(smi), {}) == [
        "nvidia-smi exited with code 15: Unable to determine the device handle for GPU0: 0000:3B:00.0: Unknown Error"
    ]


def test_only_the_visible_gpus_count(smi: Path) -> None:
    gpus = source(smi).gpus()
    assert visible_uuids(gpus, {}) == {ONE, TWO}
    assert visible_uuids(gpus, {"CUDA_VISIBLE_DEVICES": "1"}) == {TWO}
    assert visible_uuids(gpus, {"CUDA_VISIBLE_DEVICES": "GPU-d018"}) == {ONE}
    assert findings(source(smi), {"CUDA_VISIBLE_DEVICES": "0"}, "90%") == []
    assert findings(source(smi), {"CUDA_VISIBLE_DEVICES": ""}) == ["no visible GPU of 2, with CUDA_VISIBLE_DEVICES=''"]


def test_a_gpu_with_too_little_memory_is_named_with_who_holds_it(smi: Path) -> None:
    (found,) = findings(source(smi), {}, "90%")
    assert found.startswith(f"GPU 1 ({TWO}) has 1.0 GiB of 79.6 GiB free, not 90%: pid 999999 (python,with a comma")
    assert f"holds 76.6 GiB of {TWO}; pid 999998 (not visible here, perhaps of another container) holds memory" in found


def test_a_node_without_gpus_has_no_source(tmp_path: Path) -> None:
    assert find_source({"PATH": str(tmp_path)}) is None
    assert findings(None, {}) == ["no GPU: there is neither NVML nor nvidia-smi nor AMD's driver"]


def test_nvml_tells_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with the functions of nvidia-ml-py, since that needs a driver."""

    class NVMLError(Exception):
        """Of NVML."""

    fake = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: ONE.encode(),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=100, free=40, used=60),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=7, usedGpuMemory=None)],
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    found = find_source({"PATH": ""})
    assert isinstance(found, Nvml)
    assert found.gpus() == [Gpu(ONE, 100, 40)]
    assert found.holders() == [Holder(7, ONE, None)]


def test_amds_files_tell_the_same(tmp_path: Path) -> None:
    device, process = tmp_path / "drm" / "renderD128" / "device", tmp_path / "kfd" / "proc" / "4242"
    for place in (device, process):
        place.mkdir(parents=True)
    (device / "mem_info_vram_total").write_text("1000\n")
    (device / "mem_info_vram_used").write_text("400\n")
    (process / "vram_51110").write_text("300\n")
    (process / "vram_51111").write_text("0\n")
    amd = Amd(tmp_path / "kfd", tmp_path / "drm")
    assert amd.gpus() == [Gpu("renderD128", 1000, 600)]
    assert amd.holders() == [Holder(4242, "51110", 300)]


def test_a_holder_is_named_with_its_command_and_user() -> None:
    told = describe_holder(Holder(os.getpid(), ONE, 3 << 30, "as the driver says"))
    assert told.startswith(f"pid {os.getpid()} (")
    assert ", user " in told
    assert "as the driver says" not in told, "its own command line is better"
    assert told.endswith(f") holds 3.0 GiB of {ONE}")


def holding(*pids: int) -> SimpleNamespace:
    return SimpleNamespace(
        gpus=lambda: [Gpu(ONE, 100, 100), Gpu(TWO, 100, 100)], holders=lambda: [Holder(pid, ONE, 50) for pid in pids]
    )


def wait_for(*pids: int, environ: dict[str, str] | None = None) -> MemoryWait:
    return MemoryWait(environ or {}, lambda _: holding(*pids))


def test_workers_wait_for_a_foreign_process_once_and_not_for_the_agents_own() -> None:
    own = subprocess.Popen(["sleep", "60"])
    try:
        assert wait_for(os.getpid(), own.pid).reason(2, "run") is None
        foreign = wait_for(1)
        assert "pid 1 (" in str(foreign.reason(2, "run"))
        assert foreign.reason(2, "run") is not None, "as long as this round waits"
        assert foreign.reason(3, "run") is None, "it has outlasted one wait"
    finally:
        own.kill()
        own.wait()


def test_gpus_that_the_workers_do_not_see_are_not_waited_for() -> None:
    assert wait_for(1, environ={"CUDA_VISIBLE_DEVICES": "1"}).reason(2, "run") is None


def test_a_node_without_gpus_is_looked_at_once() -> None:
    looks: list[object] = []

    def find(environ: object) -> None:
        looks.append(environ)

    wait = MemoryWait({}, find)
    assert [wait.reason(number, "run") for number in (1, 2, 3)] == [None] * 3
    assert len(looks) == 1


@pytest.mark.parametrize(("run", "round", "same"), [("r", 3, True), ("r", 2, True), ("r", 4, False), ("x", 3, False)])
def test_workers_of_the_same_round_on_another_agent_of_this_host_are_not_waited_for(
    run: str, round: int, same: bool
) -> None:
    """Of the round itself, or a later one; those of an earlier round should be gone."""
    worker = subprocess.Popen(["sleep", "60"], env={**os.environ, "ELASTIC_RUN_UID": "r", "ELASTIC_ROUND": "3"})
    try:
        assert is_of_round(worker.pid, run, round) is same
    finally:
        worker.kill()
        worker.wait()
