"""How the CPUs that the agent may use lie: which share a core, a cache, a socket, a NUMA node; and the accelerators'.

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
    """One hardware thread, by the kernel's numbers.

    Attributes:
        number: Its own.
        node: Its NUMA node's.
        socket: Its package's.
        core: The lowest number of a thread of the same physical core.
        cache: The lowest number of a CPU that shares its last cache.
    """

    number: int
    node: int
    socket: int
    core: int
    cache: int


@dataclass(frozen=True, slots=True)
class Topology:
    """The CPUs that workers may run on, and where the accelerators are.

    Attributes:
        cpus: By number. Those outside of the agent's own affinity are not among them.
        accelerators: The NUMA node of every visible accelerator in the order of local ranks; None where it is unknown.
    """

    cpus: tuple[Cpu, ...]
    accelerators: tuple[int | None, ...] = ()


def read_topology(environ: Mapping[str, str], machine: Machine) -> Topology:
    """Return what sysfs says of this machine.

    Where nothing is told, as in some virtual machines and containers, all CPUs are on node 0, in one socket and under
    one cache, and each is a core.
    """
    nodes = {cpu: node for node in _node_numbers(machine) for cpu in _list(machine, f"{_NODES}/node{node}/cpulist")}
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


def _node_numbers(machine: Machine) -> list[int]:
    return sorted(int(name[4:]) for name in machine.names(_NODES) if re.fullmatch(r"node\d+", name))


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
    """Return an accelerator's NUMA node; firmware leaves -1 mostly on machines that have only one."""
    node = machine.number(f"{_PCI}/{address}/numa_node")
    if node is None or node < 0:
        return next(iter(nodes)) if len(nodes) == 1 else None
    return node
