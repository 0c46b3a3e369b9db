from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from elastic_devices.cpus import Cpu, Topology, parse_cpus, read_topology
from elastic_devices.inventory import Machine

MachineOf = Callable[..., Machine]

NODES, CPUS = "sys/devices/system/node", "sys/devices/system/cpu"


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", set()),
        ("0", {0}),
        ("0-3,8-11", {0, 1, 2, 3, 8, 9, 10, 11}),
        ("5,7-7\n", {5, 7}),
        ("0-1,64-65,127", {0, 1, 64, 65, 127}),
    ],
)
def test_a_list_of_cpus_is_read_as_the_kernel_writes_it(text: str, cpus: set[int]) -> None:
    assert parse_cpus(text) == cpus


def cpu_files(number: int, *, socket: int, siblings: str, caches: list[tuple[int, str, str]]) -> dict[str, str]:
    about = f"{CPUS}/cpu{number}"
    files = {f"{about}/topology/physical_package_id": str(socket), f"{about}/topology/thread_siblings_list": siblings}
    for index, (level, kind, shared) in enumerate(caches):
        place = f"{about}/cache/index{index}"
        files |= {f"{place}/level": str(level), f"{place}/type": kind, f"{place}/shared_cpu_list": shared}
    return files


def pair_of_sockets() -> dict[str, str]:
    """CPUs 0, 2 on socket 0 and 1, 3 on socket 3, each a core; a node a socket; the third level is a node's."""
    files = {f"{NODES}/node0/cpulist": "0,2", f"{NODES}/node1/cpulist": "1,3", f"{NODES}/possible": "0-1"}
    for number in range(4):
        shared = "1,3" if number % 2 else "0,2"
        caches = [(3, "Unified", shared), (1, "Data", str(number)), (4, "Instruction", str(number))]
        files |= cpu_files(number, socket=3 * (number % 2), siblings=str(number), caches=caches)
    return files


def test_cpus_know_their_node_socket_core_and_last_cache_for_data(machine_of: MachineOf) -> None:
    assert read_topology({}, machine_of(pair_of_sockets())) == Topology(
        (Cpu(0, 0, 0, 0, 0), Cpu(1, 1, 3, 1, 1), Cpu(2, 0, 0, 2, 0), Cpu(3, 1, 3, 3, 1))
    )


def test_threads_of_a_core_have_its_first_ones_number_even_if_the_agent_may_not_use_that(machine_of: MachineOf) -> None:
    files = cpu_files(4, socket=0, siblings="0,4", caches=[(2, "Unified", "0-1,4-5")])
    assert read_topology({}, machine_of(files, cpus=[4])).cpus == (Cpu(4, 0, 0, 0, 0),)


def test_cpus_that_the_agent_may_not_use_are_left_out(machine_of: MachineOf) -> None:
    cpus = read_topology({}, machine_of(pair_of_sockets(), cpus=[3, 0])).cpus
    assert [cpu.number for cpu in cpus] == [0, 3]


def test_where_nothing_is_told_all_cpus_are_cores_of_one_node(machine_of: MachineOf) -> None:
    cpus = read_topology({}, machine_of(cpus=[0, 1, 2])).cpus
    assert cpus == (Cpu(0, 0, 0, 0, -1), Cpu(1, 0, 0, 1, -1), Cpu(2, 0, 0, 2, -1))


def gpu_files(*homes: str | None) -> dict[str, str]:
    addresses = [f"0000:{number + 16:02x}:00.0" for number in range(len(homes))]
    files = {f"proc/driver/nvidia/gpus/{address}/information": "" for address in addresses}
    nodes = zip(addresses, homes, strict=True)
    return files | {f"sys/bus/pci/devices/{address}/numa_node": home for address, home in nodes if home is not None}


def test_accelerators_are_on_the_nodes_that_pci_tells_in_the_order_of_local_ranks(machine_of: MachineOf) -> None:
    machine = machine_of(pair_of_sockets() | gpu_files("1", "0", "-1", None))
    assert read_topology({}, machine).accelerators == (1, 0, None, None)
    assert read_topology({"CUDA_VISIBLE_DEVICES": "3,1,0"}, machine).accelerators == (None, 0, 1)
    assert read_topology({"CUDA_VISIBLE_DEVICES": ""}, machine).accelerators == ()


def test_an_accelerator_whose_node_is_not_told_is_on_the_only_one(machine_of: MachineOf) -> None:
    assert read_topology({}, machine_of({f"{NODES}/node0/cpulist": "0-3"} | gpu_files("-1", None))).accelerators == (
        0,
        0,
    )


def test_the_agents_limits_do_not_make_one_node_of_two(machine_of: MachineOf) -> None:
    machine = machine_of(pair_of_sockets() | gpu_files("-1"), cpus=[0, 2])
    assert read_topology({}, machine).accelerators == (None,)


def test_this_machines_cpus_are_all_found() -> None:
    cpus = read_topology(os.environ, Machine()).cpus
    assert {cpu.number for cpu in cpus} == os.sched_getaffinity(0)
    assert all(cpu.core <= cpu.number for cpu in cpus)
