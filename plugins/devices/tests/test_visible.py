from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from elastic_core.errors import UsageError
from elastic_devices.inventory import Device, Machine
from elastic_devices.visible import (
    accelerators,
    count_workers,
    gpus,
    only_device,
    select,
    visible_devices,
    xpus,
)

MachineOf = Callable[..., Machine]
Environ = Mapping[str, str]

CUDA, HIP, ROCR, MASK = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"


def nvidia_files(count: int) -> dict[str, str]:
    """The driver's files of GPUs with the UUIDs GPU-0000, GPU-1111, and so on."""
    return {
        f"proc/driver/nvidia/gpus/0000:{number + 16:02x}:00.0/information": f"GPU UUID:\t GPU-{str(number) * 4}"
        for number in range(count)
    }


def amd_files(count: int) -> dict[str, str]:
    return {
        f"sys/class/kfd/kfd/topology/nodes/{number}/properties": f"simd_count 8\nlocation_id {(number + 1) << 8}"
        for number in range(count)
    }


def intel_files(*addresses: str, tiles: int = 1) -> dict[str, dict[str, str]]:
    """The arguments of ``machine_of`` for these GPUs of Intel."""
    places = {number: f"sys/devices/pci/{address}" for number, address in enumerate(addresses, 128)}
    files = {f"{place}/vendor": "0x8086" for place in places.values()}
    files |= {f"{place}/tile{tile}/id": "" for place in places.values() for tile in range(tiles)}
    return {
        "files": files,
        "links": {f"sys/class/drm/renderD{number}/device": place for number, place in places.items()},
    }


FOUR = [
    Device("0000:10:00.0", "GPU-12ab", ("MIG-a", "MIG-b")),
    Device("0000:20:00.0", "GPU-12cd"),
    Device("0000:30:00.0", "GPU-9876", ("MIG-c",)),
    Device("0000:40:00.0"),
]


@pytest.mark.parametrize(
    ("listed", "chosen"),
    [
        (None, ["0", "1", "2", "3"]),
        ("", []),
        ("2", ["2"]),
        ("3, 1", ["3", "1"]),
        ("0,1,4,2", ["0", "1"]),  # an invalid one ends the list
        ("0,-1,1", ["0"]),
        ("-1", []),
        ("NoDevFiles", []),  # Slurm's word for none
        ("1,0,1", []),  # CUDA refuses a device that is named twice
        ("1,01", []),
        ("1gpu,+2", ["1gpu", "+2"]),  # as strtoul reads them
        ("GPU-12ab", ["GPU-12ab"]),
        ("GPU-9,GPU-12c", ["GPU-9", "GPU-12c"]),
        ("GPU-9,GPU-12,GPU-12c", ["GPU-9"]),  # GPU-12 may be either of two
        ("GPU-9,GPU-98", []),
        ("GPU-9,0", ["GPU-9"]),
        ("0,GPU-9", ["0"]),
        ("GPU-", []),
        ("GPU-ffff,GPU-9", []),
        ("MIG-c,MIG-a,MIG-b", ["MIG-c", "MIG-a", "MIG-b"]),
        ("MIG-b,MIG-d,MIG-a", ["MIG-b"]),
        ("MIG-GPU-9876/1/0,MIG-GPU-9876/2/0", ["MIG-GPU-9876/1/0", "MIG-GPU-9876/2/0"]),
        ("MIG-GPU-5555/1/0", []),
    ],
)
def test_a_list_of_visible_devices_leaves_what_cuda_would(listed: str | None, chosen: list[str]) -> None:
    assert [visible.name for visible in select(listed, FOUR)] == chosen


def test_a_selected_device_knows_the_gpu_that_it_is_or_is_a_part_of() -> None:
    assert [one.device for one in select("2,0", FOUR)] == [FOUR[2], FOUR[0]]
    assert [one.device for one in select("GPU-12c", FOUR)] == [FOUR[1]]
    assert [one.device for one in select("MIG-c,MIG-GPU-12ab/0/0", FOUR)] == [FOUR[2], FOUR[0]]


@pytest.mark.parametrize(
    ("environ", "names", "buses"),
    [
        ({}, ["0", "1", "2", "3"], [1, 2, 3, 4]),
        ({ROCR: "3,2,1"}, ["0", "1", "2"], [4, 3, 2]),
        ({HIP: "2,0"}, ["2", "0"], [3, 1]),
        ({CUDA: "1"}, ["1"], [2]),
        ({HIP: "2,0", CUDA: "1"}, ["2", "0"], [3, 1]),
        ({ROCR: "3,2,1", HIP: "2,0"}, ["2", "0"], [2, 4]),  # HIP counts among what ROCr has left
        ({ROCR: "3", CUDA: "0,1"}, ["0"], [4]),
        ({HIP: ""}, [], []),
        ({ROCR: ""}, [], []),
    ],
)
def test_rocr_chooses_first_and_hip_among_the_rest(
    machine_of: MachineOf, environ: Environ, names: list[str], buses: list[int]
) -> None:
    seen = gpus(environ, machine_of(amd_files(4)))
    assert [one.name for one in seen] == names
    assert [one.device.address for one in seen] == [f"0000:{bus:02x}:00.0" for bus in buses]


def test_a_machine_with_nvidias_gpus_does_not_look_at_amds_variables(machine_of: MachineOf) -> None:
    machine = machine_of(nvidia_files(2) | amd_files(1))
    assert [one.name for one in gpus({HIP: "", ROCR: "", CUDA: "1"}, machine)] == ["1"]


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, ["0", "1", "2", "3"]),  # two cards of two tiles
        ({"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, ["0", "1"]),
        ({"ZE_FLAT_DEVICE_HIERARCHY": "FLAT", MASK: "3,1"}, ["1", "3"]),
        ({"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE", MASK: "1.0,0.1,1.1"}, ["0.1", "1.0,1.1"]),
        ({MASK: "2,7,x"}, ["2"]),
        ({MASK: "7"}, []),
        ({MASK: ""}, ["0", "1", "2", "3"]),
    ],
)
def test_level_zero_sees_tiles_or_cards_and_of_them_those_in_its_mask(
    machine_of: MachineOf, environ: Environ, names: list[str]
) -> None:
    machine = machine_of(**intel_files("0000:4d:00.0", "0000:9a:00.0", tiles=2))
    assert [one.name for one in xpus(environ, machine)] == names


def test_intels_integrated_gpu_counts_only_where_there_is_no_other(machine_of: MachineOf) -> None:
    machine = machine_of(**intel_files("0000:00:02.0", "0000:03:00.0"))
    assert [one.device.address for one in xpus({}, machine)] == ["0000:03:00.0"]
    assert [one.device.address for one in xpus({MASK: "1"}, machine)] == ["0000:00:02.0"]


@pytest.mark.parametrize("text", ["gpu", "auto"])
@pytest.mark.parametrize(("environ", "workers"), [({}, 3), ({CUDA: "2,0"}, 2), ({CUDA: "1,5,2"}, 1)])
def test_gpu_and_auto_count_visible_gpus(machine_of: MachineOf, text: str, environ: Environ, workers: int) -> None:
    assert count_workers(text, environ, machine_of(nvidia_files(3))) == workers


def test_xpu_counts_intels_gpus_whatever_else_is_there(machine_of: MachineOf) -> None:
    intels = intel_files("0000:03:00.0", "0000:04:00.0")
    machine = machine_of(intels["files"] | nvidia_files(3), links=intels["links"])
    assert count_workers("xpu", {}, machine) == 2
    assert count_workers("auto", {}, machine) == 3
    assert count_workers("auto", {CUDA: ""}, machine) == 2


def test_auto_counts_cpus_where_no_accelerator_is_visible(machine_of: MachineOf) -> None:
    assert count_workers("auto", {CUDA: ""}, machine_of(nvidia_files(3), cpus=range(6))) == 6


def test_auto_takes_no_notice_of_a_gpu_inside_the_processor_but_xpu_does(machine_of: MachineOf) -> None:
    machine = machine_of(**intel_files("0000:00:02.0"))
    assert count_workers("auto", {}, machine) == 4
    assert count_workers("xpu", {}, machine) == 1


def test_gpu_without_any_says_what_was_looked_for(machine_of: MachineOf) -> None:
    with pytest.raises(UsageError) as caught:
        count_workers("gpu", {}, machine_of())
    assert str(caught.value) == (
        "--nproc_per_node 'gpu': none was found. Looked for NVIDIA's by libnvidia-ml.so.1 and in "
        "/proc/driver/nvidia/gpus (there: 0), AMD's in /sys/class/kfd (there: 0); 0 visible.\n"
        "Give a number, or cpu, or auto, which counts CPUs where there is nothing else."
    )


def test_gpu_with_all_of_them_hidden_names_the_variable_that_hides_them(machine_of: MachineOf) -> None:
    with pytest.raises(UsageError, match=r"\(there: 3\).*; 0 visible, with CUDA_VISIBLE_DEVICES='7,1'"):
        count_workers("gpu", {CUDA: "7,1"}, machine_of(nvidia_files(3)))


def test_xpu_without_any_says_what_was_looked_for(machine_of: MachineOf) -> None:
    with pytest.raises(UsageError, match=r"'xpu': none was found\. Looked for Intel's in /sys/class/drm \(there: 0\)"):
        count_workers("xpu", {}, machine_of(nvidia_files(1)))


@pytest.mark.parametrize(
    ("environ", "values"),
    [
        ({}, ["0", "1", "2"]),
        ({CUDA: "2, 0"}, ["2", "0"]),
        ({CUDA: "GPU-2222,GPU-0"}, ["GPU-2222", "GPU-0"]),
        ({CUDA: ""}, ["", ""]),  # for workers on CPUs there is nothing to hand out
        ({CUDA: "NoDevFiles"}, ["NoDevFiles", "NoDevFiles"]),
    ],
)
def test_each_worker_sees_its_own_gpu_only(machine_of: MachineOf, environ: Environ, values: list[str]) -> None:
    machine = machine_of(nvidia_files(3))
    assert [visible_devices(rank, environ, machine) for rank in range(len(values))] == values


def test_a_worker_sees_one_gpu_and_the_one_of_its_rank(machine_of: MachineOf) -> None:
    machine, environ = machine_of(nvidia_files(4)), {CUDA: "3,GPU-0,1"}
    everyone = gpus(environ, machine)
    own = [gpus({CUDA: visible_devices(rank, environ, machine)}, machine) for rank in range(len(everyone))]
    assert own == [(one,) for one in everyone]


@pytest.mark.parametrize(("environ", "value"), [({}, "1"), ({CUDA: "5, 6"}, "6"), ({CUDA: ""}, "")])
def test_where_no_gpu_can_be_seen_the_list_is_believed(machine_of: MachineOf, environ: Environ, value: str) -> None:
    assert visible_devices(1, environ, machine_of()) == value


@pytest.mark.parametrize(
    ("files", "environ", "rank", "message"),
    [
        (2, {}, 2, r"no GPU for local rank 2; 2 visible\.\nGive --nproc_per_node=2"),
        (4, {CUDA: "3,1"}, 2, r"no GPU for local rank 2; 2 visible, with CUDA_VISIBLE_DEVICES='3,1'"),
        (2, {CUDA: "0,9"}, 1, r"no GPU for local rank 1; 1 visible, with CUDA_VISIBLE_DEVICES='0,9'"),
        (0, {CUDA: "0"}, 1, r"no GPU for local rank 1; 1 visible, with CUDA_VISIBLE_DEVICES='0'"),
    ],
)
def test_a_worker_without_a_gpu_is_an_error(
    machine_of: MachineOf, files: int, environ: Environ, rank: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        visible_devices(rank, environ, machine_of(nvidia_files(files)))


def test_hip_is_told_in_its_own_variable_where_that_is_set(machine_of: MachineOf) -> None:
    machine = machine_of(amd_files(4))
    assert only_device(1, {HIP: "3,2"}, machine) == {CUDA: "2", HIP: "2"}
    assert only_device(1, {ROCR: "3,2"}, machine) == {CUDA: "1"}


def test_hips_variable_is_left_alone_where_the_gpus_are_nvidias(machine_of: MachineOf) -> None:
    assert only_device(1, {HIP: "3,2"}, machine_of(nvidia_files(2))) == {CUDA: "1"}


def test_level_zero_is_told_in_its_own_variable(machine_of: MachineOf) -> None:
    machine = machine_of(**intel_files("0000:03:00.0", "0000:04:00.0"))
    assert only_device(1, {}, machine) == {CUDA: "1", MASK: "1"}
    assert only_device(0, {MASK: "1"}, machine) == {CUDA: "0", MASK: "1"}
    with pytest.raises(UsageError, match="no xpu for local rank 1; 1 visible, with ZE_AFFINITY_MASK='1'"):
        only_device(1, {MASK: "1"}, machine)


def test_a_gpu_inside_the_processor_is_nobodys_own(machine_of: MachineOf) -> None:
    assert only_device(3, {}, machine_of(**intel_files("0000:00:02.0"))) == {CUDA: "3"}


def test_workers_compute_on_gpus_before_xpus(machine_of: MachineOf) -> None:
    intels = intel_files("0000:03:00.0")
    machine = machine_of(intels["files"] | nvidia_files(1), links=intels["links"])
    assert [one.device.address for one in accelerators({}, machine)] == ["0000:10:00.0"]
    assert [one.device.address for one in accelerators({CUDA: ""}, machine)] == ["0000:03:00.0"]


def test_this_machine_is_counted_without_torch_or_cuda() -> None:
    count = """
        import os, sys
        from elastic_devices.inventory import Machine
        from elastic_devices.cpus import read_topology
        from elastic_devices.visible import count_workers
        assert count_workers("auto", os.environ, Machine()) >= 1
        assert read_topology(os.environ, Machine()).cpus
        maps = open("/proc/self/maps").read()
        print([name for name in ("torch", "libcuda.so", "libcudart") if name in sys.modules or name in maps])
    """
    source = "\n".join(line.strip() for line in count.splitlines())
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
