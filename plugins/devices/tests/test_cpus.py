from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from elastic_core.errors import UsageError
from elastic_devices.cpus import Cpu, Topology, parse_cpus, read_topology, worker_cpus
from elastic_devices.flags import NUMA_BINDING
from elastic_devices.inventory import Machine


def server(
    *,
    cores: int,
    nodes: int,
    sockets: int = 1,
    threads: int = 1,
    cores_to_a_cache: int | None = None,
    accelerators: Sequence[int | None] = (),
    allowed: str | None = None,
) -> Topology:
    """A machine numbered as Linux numbers most: the first threads of all cores, node by node, then the second ones."""
    under = cores_to_a_cache or cores // nodes
    cpus = [
        Cpu(
            number=thread * cores + core,
            node=core * nodes // cores,
            socket=core * sockets // cores,
            core=core,
            cache=core // under * under,
        )
        for thread in range(threads)
        for core in range(cores)
    ]
    usable = parse_cpus(allowed) if allowed is not None else {cpu.number for cpu in cpus}
    return Topology(tuple(cpu for cpu in cpus if cpu.number in usable), tuple(accelerators))


def bound(mode: str, workers: int, topology: Topology) -> list[set[int]]:
    return [set(worker_cpus(mode, rank, workers, topology)) for rank in range(workers)]


def cpus(*lists: str) -> list[set[int]]:
    return [set(parse_cpus(text)) for text in lists]


ONE_NODE = server(cores=4, nodes=1)
THREADS = server(cores=4, nodes=1, threads=2)  # core 0 is CPUs 0 and 4
FOUR_NODES = server(cores=16, nodes=4, sockets=2, threads=2)  # node 0 is CPUs 0-3,16-19, socket 0 nodes 0 and 1
COMPLEXES = server(cores=8, nodes=2, sockets=2, cores_to_a_cache=2)  # node 0 is CPUs 0-3, under caches 0-1 and 2-3
GPUS = server(cores=16, nodes=4, sockets=2, threads=2, accelerators=[1, 1, 3, 0])


@pytest.mark.parametrize(
    ("mode", "workers", "topology", "expected"),
    [
        # One node.
        ("node", 2, ONE_NODE, ["0-3", "0-3"]),
        ("socket", 2, ONE_NODE, ["0-3", "0-3"]),
        ("exclusive", 1, ONE_NODE, ["0-3"]),
        ("exclusive", 2, ONE_NODE, ["0-1", "2-3"]),
        ("exclusive", 3, ONE_NODE, ["0-1", "2", "3"]),
        ("core-complex", 2, ONE_NODE, ["0-3", "0-3"]),
        # Hyperthreads of a core stay together.
        ("exclusive", 4, THREADS, ["0,4", "1,5", "2,6", "3,7"]),
        ("exclusive", 3, THREADS, ["0-1,4-5", "2,6", "3,7"]),
        # Two sockets of two nodes; workers spread over them.
        ("node", 2, FOUR_NODES, ["0-3,16-19", "8-11,24-27"]),
        ("node", 4, FOUR_NODES, ["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"]),
        ("node", 3, FOUR_NODES, ["0-3,16-19", "4-7,20-23", "8-11,24-27"]),
        ("socket", 4, FOUR_NODES, ["0-7,16-23", "0-7,16-23", "8-15,24-31", "8-15,24-31"]),
        ("exclusive", 8, FOUR_NODES, [f"{c}-{c + 1},{c + 16}-{c + 17}" for c in range(0, 16, 2)]),
        ("exclusive", 2, FOUR_NODES, ["0-3,16-19", "8-11,24-27"]),
        # A cache for each worker while there are any, then again the first.
        ("core-complex", 4, COMPLEXES, ["0-1", "2-3", "4-5", "6-7"]),
        ("core-complex", 6, COMPLEXES, ["0-1", "2-3", "0-1", "4-5", "6-7", "4-5"]),
        ("core-complex", 2, COMPLEXES, ["0-1", "4-5"]),
        # GPUs say where home is.
        ("node", 4, GPUS, ["4-7,20-23", "4-7,20-23", "12-15,28-31", "0-3,16-19"]),
        ("socket", 4, GPUS, ["0-7,16-23", "0-7,16-23", "8-15,24-31", "0-7,16-23"]),
        ("exclusive", 4, GPUS, ["4-5,20-21", "6-7,22-23", "12-15,28-31", "0-3,16-19"]),
        ("exclusive", 1, GPUS, ["4-7,20-23"]),  # there is no other worker to share with
        ("core-complex", 3, GPUS, ["4-7,20-23", "4-7,20-23", "12-15,28-31"]),
        ("exclusive", 6, GPUS, ["4,20", "5,21", "12-15,28-31", "0-3,16-19", "6,22", "7,23"]),  # two share a GPU in turn
    ],
)
def test_workers_run_near_their_accelerators_or_evenly_spread(
    mode: str, workers: int, topology: Topology, expected: list[str]
) -> None:
    assert bound(mode, workers, topology) == cpus(*expected)


@pytest.mark.parametrize(
    ("mode", "workers", "topology", "expected"),
    [
        pytest.param("node", 2, server(cores=8, nodes=2, allowed="1,3-5"), ["1,3", "4-5"], id="half of each node"),
        pytest.param("node", 2, server(cores=8, nodes=2, allowed="2-3"), ["2-3", "2-3"], id="one node only"),
        pytest.param("socket", 1, server(cores=8, nodes=4, sockets=2, allowed="0,2,7"), ["0,2"], id="part of a socket"),
        pytest.param(
            "exclusive",
            4,
            server(cores=8, nodes=2, allowed="0,4-6"),
            ["0", "4", "5", "6"],
            id="workers go where cores are",
        ),
        pytest.param(
            "exclusive", 2, server(cores=4, nodes=1, threads=2, allowed="4-6,2"), ["4-5", "2,6"], id="second threads"
        ),
        pytest.param(
            "core-complex",
            2,
            server(cores=8, nodes=1, cores_to_a_cache=2, allowed="1,4-5,6-7"),
            ["4-5", "6-7"],
            id="the fullest caches first",
        ),
        pytest.param(
            "node", 2, server(cores=8, nodes=2, accelerators=[1, 0], allowed="0-3"), ["0-3", "0-3"], id="no CPU at home"
        ),
    ],
)
def test_no_worker_is_given_a_cpu_that_the_agent_may_not_use(
    mode: str, workers: int, topology: Topology, expected: list[str]
) -> None:
    assert bound(mode, workers, topology) == cpus(*expected)


def test_workers_whose_accelerators_tell_no_node_are_spread() -> None:
    assert bound("node", 4, server(cores=8, nodes=2, accelerators=[None] * 4)) == cpus("0-3", "0-3", "4-7", "4-7")
    assert bound("node", 2, server(cores=8, nodes=2, accelerators=[1, None])) == cpus("4-7", "4-7")
    assert bound("node", 2, server(cores=8, nodes=2, accelerators=[9, 0])) == cpus("0-3", "0-3")


def test_more_exclusive_workers_than_cores_is_an_error_that_counts_both() -> None:
    with pytest.raises(UsageError) as caught:
        worker_cpus("exclusive", 0, 3, server(cores=4, nodes=2, threads=2, accelerators=[1]))
    assert str(caught.value) == (
        "--numa_binding 'exclusive': NUMA node 1 has 3 workers and only 2 cores that the agent may use.\n"
        "Start fewer workers with --nproc_per_node, or bind them with --numa_binding=node."
    )


def test_an_unknown_mode_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(UsageError, match=r"'core_complex' is none of .*\. Did you mean 'core-complex'\?"):
        NUMA_BINDING.read("core_complex")


@pytest.mark.parametrize("workers", range(1, 9))
@pytest.mark.parametrize("allowed", ["0-15", "0,2-6,10,15", "0-3,8-11", "1,9,3,11,5,13,6,14,7,15,0"])
def test_exclusive_workers_share_out_whole_cores_while_there_are_enough(workers: int, allowed: str) -> None:
    topology = server(cores=8, nodes=2, threads=2, allowed=allowed)
    cores = {cpu.number: cpu.core for cpu in topology.cpus}
    if workers > len(set(cores.values())):
        with pytest.raises(UsageError):
            bound("exclusive", workers, topology)
        return
    own = [{cores[number] for number in each} for each in bound("exclusive", workers, topology)]
    assert all(own)
    assert sum(map(len, own)) == len(set().union(*own))


@pytest.mark.parametrize("mode", ["node", "socket", "exclusive", "core-complex"])
def test_a_process_on_this_machine_gets_the_cpus_that_it_is_given(mode: str) -> None:
    topology = read_topology(os.environ, Machine())
    workers = min(2, len({cpu.core for cpu in topology.cpus}))
    show = "import os; print(sorted(os.sched_getaffinity(0)))"
    bind = "import os, sys; os.sched_setaffinity(0, {}); os.execv(sys.executable, [sys.executable, '-c', {!r}])"
    for rank in range(workers):
        given = worker_cpus(mode, rank, workers, topology)
        command = [sys.executable, "-c", bind.format(set(given), show)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert ast.literal_eval(shown) == sorted(given)
