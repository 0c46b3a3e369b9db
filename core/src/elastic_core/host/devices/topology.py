"""Which CPUs of the agent share a core, a cache, a socket, a NUMA node; and the NUMA nodes of the accelerators.

Sources: the kernel's ``Documentation/admin-guide/cputopology.rst`` and ``Documentation/ABI/stable/sysfs-devices-node``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from elastic_core.host.devices.machine import Machine
from elastic_core.host.devices.visible import accelerators

_NODES = "sys/devices/system/node"
_CPUS = "sys/devices/system/cpu"
_PCI = "sys/bus/pci/devices"


@dataclass(frozen=True, slots=True)
class Cpu:
    """One hardware thread, by the kernel's numbers."""

    number: int
    node: int  # the number of its NUMA node
    socket: int  # the number of its package
    core: int  # the lowest number of a thread of the same physical core
    cache: int  # the lowest number of a CPU that shares its last cache


@dataclass(frozen=True, slots=True)
class Topology:
    """The CPUs that workers may run on, and the places of the accelerators."""

    cpus: tuple[Cpu, ...]  # by number, only CPUs of the agent's affinity
    accelerators: tuple[int | None, ...] = ()
    """The NUMA node of every visible accelerator in the order of local ranks; None if it is unknown."""


def read_topology(environ: Mapping[str, str], machine: Machine) -> Topology:
    """Return the topology from sysfs.

    Without data, as in some virtual machines and containers, all CPUs are on node 0, in one socket and under one cache,
    and each is a core.
    """
    numbers = sorted(int(name[4:]) for name in machine.names(_NODES) if re.fullmatch(r"node\d+", name))
    nodes = {cpu: node for node in numbers for cpu in _list(machine, f"{_NODES}/node{node}/cpulist")}
    cpus = tuple(_cpu(number, nodes.get(number, 0), machine) for number in sorted(machine.affinity()))
    known = {cpu.node for cpu in cpus} | set(nodes.values())
    homes = (_home(visible.device.address, machine, known) for visible in accelerators(environ, machine))
    return Topology(cpus, tuple(homes))


def parse_cpus(text: str) -> frozenset[int]:
    """Return the CPUs of a list as the kernel writes it: ``0-3,8-11``; '' is none.

    Raises:
        ValueError: It is no such list.
    """
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _list(machine: Machine, path: str) -> frozenset[int]:
    return parse_cpus(machine.read(path) or "")


def _cpu(number: int, node: int, machine: Machine) -> Cpu:
    about = f"{_CPUS}/cpu{number}"
    socket = machine.number(f"{about}/topology/physical_package_id")
    siblings = _list(machine, f"{about}/topology/thread_siblings_list")
    return Cpu(
        number=number,
        node=node,
        socket=0 if socket is None else socket,
        core=min(siblings, default=number),
        cache=min(_last_cache(about, machine), default=-1),
    )


def _last_cache(about: str, machine: Machine) -> frozenset[int]:
    """Return the CPUs that share the cache of the highest level that holds data."""
    found: dict[int, frozenset[int]] = {}
    for name in machine.names(f"{about}/cache"):
        level = machine.number(f"{about}/cache/{name}/level")
        if level is not None and machine.read(f"{about}/cache/{name}/type") != "Instruction":
            found[level] = _list(machine, f"{about}/cache/{name}/shared_cpu_list")
    return found[max(found)] if found else frozenset()


def _home(address: str, machine: Machine, nodes: set[int]) -> int | None:
    """Return an accelerator's NUMA node; firmware says -1 mostly on machines with only one node."""
    node = machine.number(f"{_PCI}/{address}/numa_node")
    if node is None or node < 0:
        return next(iter(nodes)) if len(nodes) == 1 else None
    return node
