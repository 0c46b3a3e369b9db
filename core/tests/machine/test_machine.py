"""Devices are counted, handed out and bound to from files that look like a machine's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from elastic_core.errors import UsageError
from elastic_core.machine import Machine, bindings, local_world_size, visible_devices
from elastic_core.machine.devices import visible_gpus
from elastic_core.machine.reading import NumaNode, parse_cpus

Build = Callable[[Mapping[str, str]], Machine]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Makes a machine of files."""

    def build(files: Mapping[str, str]) -> Machine:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return Machine(tmp_path, nvml="")

    return build


def nvidia(count: int) -> dict[str, str]:
    names = [f"0000:{0x3B + index:02X}:00.0" for index in range(count)]
    return {
        f"proc/driver/nvidia/gpus/{name.lower()}/information": f"Model: H200\nGPU UUID:\t GPU-{index}a{index}b\n"
        for index, name in enumerate(names)
    }


CPUS = {"sys/devices/system/cpu/online": "0-7\n"}
AMD = {f"sys/class/kfd/kfd/topology/nodes/{node}/gpu_id": gpu for node, gpu in enumerate(("0\n", "1234\n", "5678\n"))}
INTEL = {"sys/class/drm/renderD128/device/vendor": "0x8086\n", "sys/class/drm/renderD129/device/vendor": "0x10de\n"}


@pytest.mark.parametrize(
    ("kind", "files", "environ", "count"),
    [
        ("cpu", CPUS, {}, 8),
        ("gpu", nvidia(4), {}, 4),
        ("gpu", nvidia(4), {"CUDA_VISIBLE_DEVICES": "2,0"}, 2),
        ("gpu", nvidia(4), {"CUDA_VISIBLE_DEVICES": "0,9,1"}, 1),
        ("gpu", nvidia(4), {"CUDA_VISIBLE_DEVICES": "1,1"}, 1),
        ("gpu", nvidia(4), {"CUDA_VISIBLE_DEVICES": "GPU-1a,GPU-3"}, 2),
        ("gpu", nvidia(1), {"CUDA_VISIBLE_DEVICES": "MIG-x,MIG-y"}, 2),
        ("gpu", AMD, {}, 2),
        ("gpu", AMD, {"HIP_VISIBLE_DEVICES": "1"}, 1),
        ("xpu", INTEL, {}, 1),
        ("xpu", INTEL, {"ZE_AFFINITY_MASK": "0.0,0.1"}, 2),
        ("auto", {**CPUS, **nvidia(2), **INTEL}, {}, 2),
        ("auto", {**CPUS, **INTEL}, {}, 1),
        ("auto", CPUS, {}, 8),
        ("auto", {**CPUS, **nvidia(2)}, {"CUDA_VISIBLE_DEVICES": ""}, 8),
    ],
)
def test_a_word_counts_the_devices_that_workers_would_see(
    build: Build, kind: str, files: Mapping[str, str], environ: Mapping[str, str], count: int
) -> None:
    assert local_world_size(kind, environ, build(files)) == count


@pytest.mark.parametrize(
    ("kind", "environ", "message"),
    [
        ("gpu", {}, "--nproc_per_node 'gpu': there is no NVIDIA or AMD GPU here."),
        ("gpu", {"CUDA_VISIBLE_DEVICES": ""}, "there is no NVIDIA or AMD GPU here (CUDA_VISIBLE_DEVICES='')."),
        ("xpu", {}, "--nproc_per_node 'xpu': there is no Intel GPU here."),
    ],
)
def test_a_kind_that_is_not_there_is_refused(build: Build, kind: str, environ: Mapping[str, str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        local_world_size(kind, environ, build(CPUS))
    assert message in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(
    ("local_rank", "environ", "devices"),
    [(1, {}, "1"), (1, {"CUDA_VISIBLE_DEVICES": "4, 6"}, "6"), (0, {"CUDA_VISIBLE_DEVICES": "GPU-a"}, "GPU-a")],
)
def test_a_worker_sees_its_own_gpu_only(
    build: Build, local_rank: int, environ: Mapping[str, str], devices: str
) -> None:
    assert visible_devices(local_rank, environ, build({})) == devices


def test_more_workers_than_visible_gpus_are_refused(build: Build) -> None:
    with pytest.raises(UsageError, match="local rank 2 has no GPU in CUDA_VISIBLE_DEVICES='4,6'"):
        visible_devices(2, {"CUDA_VISIBLE_DEVICES": "4,6"}, build({}))


def test_the_numa_node_of_a_gpu_is_what_its_place_on_the_bus_says(build: Build) -> None:
    bus = "sys/bus/pci/devices"
    machine = build({**nvidia(2), f"{bus}/0000:3b:00.0/numa_node": "1\n", f"{bus}/0000:3c:00.0/numa_node": "-1\n"})
    gpus = visible_gpus({"CUDA_VISIBLE_DEVICES": "1,0"}, machine)
    assert [machine.numa_node_of(gpu) for gpu in gpus if gpu is not None] == [None, 1]


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8,10-11\n", {0, 1, 2, 3, 8, 10, 11}), ("5", {5}), ("\n", set()), ("", set())]
)
def test_the_kernels_lists_of_cpus_are_read(text: str, cpus: set[int]) -> None:
    assert parse_cpus(text) == cpus


def test_nodes_sockets_cores_and_caches_are_read(build: Build) -> None:
    files = {"sys/devices/system/node/node0/cpulist": "0-1,4-5", "sys/devices/system/node/node1/cpulist": "2-3,6-7"}
    for cpu in range(8):
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        files[f"{folder}/topology/thread_siblings_list"] = f"{cpu % 4},{cpu % 4 + 4}"
        files[f"{folder}/topology/physical_package_id"] = str(cpu % 4 // 2)
        files[f"{folder}/cache/index3/shared_cpu_list"] = "0-1,4-5" if cpu % 4 < 2 else "2-3,6-7"
    assert build(files).numa_nodes() == [
        NumaNode(0, cpus({0, 1, 4, 5}), 0, (cpus({0, 4}), cpus({1, 5})), (cpus({0, 1, 4, 5}),)),
        NumaNode(1, cpus({2, 3, 6, 7}), 1, (cpus({2, 6}), cpus({3, 7})), (cpus({2, 3, 6, 7}),)),
    ]


def cpus(numbers: set[int]) -> frozenset[int]:
    return frozenset(numbers)


def node(number: int, socket: int) -> NumaNode:
    """Four cores of two threads and two caches: node 1 has the CPUs 8 to 15, of which 8 and 12 are one core."""
    first = 8 * number
    cores = tuple(cpus({first + core, first + core + 4}) for core in range(4))
    caches = (cores[0] | cores[1], cores[2] | cores[3])
    return NumaNode(number, cpus(set(range(first, first + 8))), socket, cores, caches)


NODES = [node(0, 0), node(1, 0), node(2, 1), node(3, 1)]
ALL = cpus(set(range(32)))


@pytest.mark.parametrize(
    ("mode", "workers", "gpus", "allowed", "expected"),
    [
        pytest.param("node", 2, [3, 1], ALL, [range(24, 32), range(8, 16)], id="the node of each one's GPU"),
        pytest.param("node", 4, [], ALL, [range(8), range(8, 16), range(16, 24), range(24, 32)], id="no GPU: spread"),
        pytest.param("node", 2, [None, None], ALL, [range(8), range(16, 24)], id="unknown places: spread"),
        pytest.param("node", 1, [0], cpus({1, 9}), [{1}], id="only what the agent may use"),
        pytest.param("socket", 2, [1, 2], ALL, [range(16), range(16, 32)], id="all nodes of the socket"),
        pytest.param("exclusive", 2, [0, 0], ALL, [{0, 1, 4, 5}, {2, 3, 6, 7}], id="threads of a core stay together"),
        pytest.param("exclusive", 3, [0, 0, 0], ALL, [{0, 1, 4, 5}, {2, 6}, {3, 7}], id="what does not divide"),
        pytest.param("exclusive", 2, [0, 1], ALL, [range(8), range(8, 16)], id="alone on its node"),
        pytest.param("exclusive", 2, [0, 0], cpus({1, 3}), [{1}, {3}], id="shares of what may be used"),
        pytest.param("core-complex", 2, [0, 0], ALL, [{0, 1, 4, 5}, {2, 3, 6, 7}], id="a cache each"),
        pytest.param(
            "core-complex", 3, [0] * 3, ALL, [{0, 1, 4, 5}, {2, 3, 6, 7}, {0, 1, 4, 5}], id="more than caches"
        ),
        pytest.param("core-complex", 1, [0], cpus({1, 2, 3}), [{2, 3}], id="the cache with most CPUs"),
    ],
)
def test_workers_are_bound_near_their_gpus(
    mode: str, workers: int, gpus: list[int | None], allowed: frozenset[int], expected: list[set[int]]
) -> None:
    assert bindings(mode, workers, NODES, gpus, allowed) == tuple(frozenset(one) for one in expected)


@pytest.mark.parametrize(("mode", "workers", "allowed"), [("exclusive", 5, ALL), ("node", 1, cpus({31}))])
def test_a_worker_without_a_cpu_is_refused(mode: str, workers: int, allowed: frozenset[int]) -> None:
    with pytest.raises(UsageError, match=f"--numa_binding '{mode}' leaves no CPU to local rank"):
        bindings(mode, workers, NODES, [0] * workers, allowed)


def test_this_very_machine_can_be_read() -> None:
    nodes = Machine().numa_nodes()
    allowed = frozenset(os.sched_getaffinity(0))
    assert allowed <= frozenset().union(*(node.cpus for node in nodes))
    assert all(frozenset().union(*node.cores) == node.cpus for node in nodes)
    assert Machine().cpus() >= len(allowed)
