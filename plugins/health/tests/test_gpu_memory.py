"""GPUs and who holds their memory, as nvidia-smi, NVML and AMD's driver tell it. No GPU is needed.

The form of nvidia-smi's answers is that of its manual (``--help-query-gpu``, ``--help-query-compute-apps``), and of
answers in public issues (NVIDIA/dcgm-exporter 94, wookayin/gpustat 18); the numbers are made up.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastic_core.events import Event
from elastic_core.gates import StartGate
from elastic_core.host.processes import state_of
from elastic_devices import visible
from elastic_devices.inventory import Device, Machine
from elastic_health import gpu_memory, plugin as health_plugin
from elastic_health.gpu import findings
from elastic_health.gpu_memory import (
    Amd,
    Gpu,
    GpuError,
    Holder,
    MemoryWait,
    Nvml,
    Smi,
    describe_holder,
    find_source,
    is_ending,
    is_of_round,
    no_nvml,
    visible_uuids,
)
from elastic_health.plugin import NodeHealth

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
    none = Machine(smi / "none", nvml=no_nvml)
    assert visible_uuids(gpus, {}, none) == {ONE, TWO}
    assert visible_uuids(gpus, {"CUDA_VISIBLE_DEVICES": "1"}, none) == {TWO}
    assert visible_uuids(gpus, {"CUDA_VISIBLE_DEVICES": "GPU-d018"}, none) == {ONE}
    assert visible_uuids(gpus, {"CUDA_VISIBLE_DEVICES": "all"}, none) == {ONE, TWO}
    assert visible_uuids(gpus, {"CUDA_VISIBLE_DEVICES": "MIG-1e1c"}, none) == {ONE, TWO}, "it cannot be mapped"
    assert findings(source(smi), {"CUDA_VISIBLE_DEVICES": "0"}, "90%") == []
    assert findings(source(smi), {"CUDA_VISIBLE_DEVICES": ""}) == ["no visible GPU of 2, with CUDA_VISIBLE_DEVICES=''"]


def test_amds_gpus_are_chosen_by_hip_and_rocr(tmp_path: Path) -> None:
    for number in (1, 2):
        node = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{number}"
        node.mkdir(parents=True)
        (node / "properties").write_text(f"simd_count 4\nlocation_id {number << 8}\nunique_id {number}\n")
    one, two = Gpu("renderD128", 1, 1, "0000:01:00.0"), Gpu("renderD129", 1, 1, "0000:02:00.0")
    machine = Machine(tmp_path, nvml=no_nvml)
    assert visible_uuids([one, two], {}, machine) == {one.uuid, two.uuid}
    assert visible_uuids([one, two], {"HIP_VISIBLE_DEVICES": "1"}, machine) == {two.uuid}
    assert visible_uuids([one, two], {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, machine) == {two.uuid}


def test_the_gpu_of_a_mig_device_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, parts = Machine(tmp_path, nvml=no_nvml), (Device("0", ONE), Device("1", TWO, ("MIG-77aa",)))
    for module in (gpu_memory, visible):
        monkeypatch.setattr(module, "nvidia", lambda _: parts)
    gpus = [Gpu(ONE, 1, 1), Gpu(TWO, 1, 1)]
    assert visible_uuids(gpus, {"CUDA_VISIBLE_DEVICES": "MIG-77aa"}, machine) == {TWO}


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


def wait_for(*pids: int, environ: dict[str, str] | None = None, note: list[str] | None = None) -> MemoryWait:
    return MemoryWait(environ or {}, lambda _: holding(*pids), ([] if note is None else note).append)


@pytest.fixture
def orphan() -> Iterator[int]:
    """A process of another run of Elastic's, which is no descendant of this process."""
    code = "import os, subprocess; print(subprocess.Popen(['sleep', '60'], stdout=-3, stderr=-3).pid)"
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: other tests may have made this process one
    environ = {**os.environ, "ELASTIC_RUN_UID": "other", "ELASTIC_ROUND": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    while not Path(f"/proc/{pid}/environ").read_bytes():  # it is still being started
        pass
    yield pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_workers_do_not_wait_for_the_agents_own_processes() -> None:
    own = subprocess.Popen(["sleep", "60"], env={**os.environ, "ELASTIC_RUN_UID": "run"})
    try:
        assert wait_for(os.getpid(), own.pid).reason(2, "run", 0.0) is None
    finally:
        own.kill()
        own.wait()


def test_workers_wait_for_a_process_of_another_run_once(orphan: int) -> None:
    wait = wait_for(orphan)
    assert f"pid {orphan} (" in str(wait.reason(1, "run", 0.0))
    assert wait.reason(7, "run", 0.0) is not None, "no worker has waited for it yet"
    assert wait.reason(7, "run", 9.8) is not None, "as long as this round waits"
    assert wait.reason(8, "run", 0.0) is None, "it has outlasted one wait"


def test_short_waits_for_a_process_add_up(orphan: int) -> None:
    wait = wait_for(orphan)
    for round in (1, 2, 3):
        for waited in (0.0, 2.0, 4.0):
            assert wait.reason(round, "run", waited) is not None
    assert wait.reason(4, "run", 0.0) is None


def test_a_foreign_process_is_named_once_and_not_waited_for() -> None:
    notes: list[str] = []
    wait = wait_for(1, note=notes)
    assert [wait.reason(round, "run", 0.0) for round in (1, 2)] == [None, None]
    assert len(notes) == 1
    assert notes[0].startswith("pid 1 (")


def test_the_memory_of_a_process_that_has_ended_is_waited_for_but_not_a_pid_that_was_never_here(orphan: int) -> None:
    absent = (1 << 22) + 1  # more than the kernel's greatest
    wait = wait_for(orphan, absent)
    wait.reason(2, "run", 0.0)
    os.kill(orphan, signal.SIGKILL)
    while Path(f"/proc/{orphan}/stat").exists() and state_of(orphan) != "Z":
        pass
    told = str(wait.reason(2, "run", 1.0))
    assert f"pid {orphan} " in told
    assert str(absent) not in told
    assert is_ending(orphan)


def test_gpus_that_do_not_answer_are_given_up_and_it_is_told_once(smi: Path) -> None:
    (smi / "code").write_text("9")
    told: list[str] = []
    wait = MemoryWait({}, lambda _: source(smi), give_up=told.append)
    assert [wait.reason(round, "run", 0.0) for round in range(1, 6)] == [None] * 5
    assert len(told) == 1
    assert told[0].startswith("nvidia-smi exited with code 9")


def test_the_gpus_are_asked_for_once(orphan: int) -> None:
    asked: list[str] = []
    held = holding(orphan)

    def ask(what: str) -> object:
        asked.append(what)
        return getattr(held, what)()

    source = SimpleNamespace(gpus=lambda: ask("gpus"), holders=lambda: ask("holders"))
    wait = MemoryWait({}, lambda _: source)
    for waited in (0.0, 1.0):
        wait.reason(1, "run", waited)
    assert asked == ["gpus", "holders", "holders"]


def test_the_plugin_publishes_whom_workers_share_gpus_with_once_it_can() -> None:
    published: list[Event] = []
    plugin = NodeHealth()
    plugin._wait = MemoryWait({}, lambda _: holding(1), plugin._notes.append)
    assert plugin.elastic_before_start(StartGate(1)) is None
    plugin.elastic_run_starts(SimpleNamespace(publish=published.append))  # type: ignore[arg-type] # all that it reads
    plugin.elastic_before_start(StartGate(2))
    (event,) = published
    assert event.message.startswith("workers share GPUs with processes that are not waited for: pid 1 (")


def test_gpus_that_the_workers_do_not_see_are_not_waited_for(orphan: int) -> None:
    assert wait_for(orphan, environ={"CUDA_VISIBLE_DEVICES": "1"}).reason(2, "run", 0.0) is None


def test_a_node_without_gpus_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []

    def find(environ: object) -> None:
        looks.append(environ)

    monkeypatch.setattr(health_plugin, "_may_have_gpus", lambda: True)
    monkeypatch.setattr(gpu_memory, "MemoryWait", lambda **_: MemoryWait({}, find))
    node = NodeHealth()
    assert [node.elastic_before_start(StartGate(number)) for number in (1, 2, 3)] == [None] * 3
    assert len(looks) == 1


@pytest.mark.parametrize(("run", "round", "same"), [("r", 3, True), ("r", 2, True), ("r", 4, False), ("x", 3, False)])
def test_workers_of_the_same_round_on_another_agent_of_this_host_are_not_waited_for(
    run: str, round: int, same: bool
) -> None:
    """Of the round itself, or a later one; those of an earlier round should be gone."""
    worker = subprocess.Popen(["sleep", "60"], env={**os.environ, "ELASTIC_RUN_UID": "r", "ELASTIC_ROUND": "3"})
    try:
        while not Path(f"/proc/{worker.pid}/environ").read_bytes():  # it is still being started
            pass
        assert is_of_round(worker.pid, run, round) is same
    finally:
        worker.kill()
        worker.wait()
