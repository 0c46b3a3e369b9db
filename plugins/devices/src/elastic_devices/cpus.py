"""The CPUs of this machine, and which of them each worker runs on (``--numa_binding``): those near its accelerator.

The modes are torchrun's (2.13, ``torch.numa.binding``); ``docs/migrating.md`` lists the differences. A worker's *home*
is the NUMA node of the visible accelerator whose number is its local rank. Memory is not bound: Linux takes a page from
the node of the CPU that touches it first. With a policy (``set_mempolicy``) a full node would kill a worker instead of
borrowing from another node.

Sources: the kernel's ``Documentation/admin-guide/cputopology.rst`` and ``Documentation/ABI/stable/sysfs-devices-node``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from elastic_core.errors import UsageError
from elastic_devices.inventory import Machine
from elastic_devices.visible import accelerators

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
    homes = (_node_of(visible.device.address, machine, known) for visible in accelerators(environ, machine))
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


def _node_of(address: str, machine: Machine, nodes: set[int]) -> int | None:
    """Return an accelerator's NUMA node; firmware says -1 mostly on machines with only one node."""
    node = machine.number(f"{_PCI}/{address}/numa_node")
    if node is None or node < 0:
        return next(iter(nodes)) if len(nodes) == 1 else None
    return node


def worker_cpus(mode: str, local_rank: int, local_world_size: int, topology: Topology) -> frozenset[int]:
    """Return the CPUs of a worker: at least one, and only CPUs that the agent has.

    * ``node``: every CPU of its home. If in doubt, this one.
    * ``socket``: every CPU of the sockets that its home is on; like ``node`` if a socket is one node.
    * ``exclusive``: the cores of its home, shared out evenly; no two workers have a core in common.
    * ``core-complex``: the CPUs under one last cache of its home, another for each worker as long as there are any.

    Raises:
        UsageError: The home has fewer cores than exclusive workers.
    """
    homes = [_home(rank, local_world_size, topology) for rank in range(local_world_size)]
    home = homes[local_rank]
    cpus = [cpu for cpu in topology.cpus if cpu.node == home]
    place = homes[:local_rank].count(home)  # among the workers with this home
    match mode:
        case "node":
            chosen = cpus
        case "socket":
            sockets = {cpu.socket for cpu in cpus}
            chosen = [cpu for cpu in topology.cpus if cpu.socket in sockets]
        case "exclusive":
            chosen = _share(cpus, place, homes.count(home), home)
        case _:
            chosen = _complex(cpus, place)
    return frozenset(cpu.number for cpu in chosen)


def _home(local_rank: int, local_world_size: int, topology: Topology) -> int:
    """Return a worker's NUMA node: its accelerator's, else each node gets workers in proportion to its cores."""
    nodes = topology.accelerators
    if nodes:
        node = nodes[local_rank % len(nodes)]
        if node is not None and any(cpu.node == node for cpu in topology.cpus):
            return node
    cores = sorted({(cpu.node, cpu.core) for cpu in topology.cpus})
    return cores[local_rank * len(cores) // local_world_size][0]


def _share(cpus: Iterable[Cpu], place: int, workers: int, home: int) -> list[Cpu]:
    """Return the CPUs of whole cores, in order; the first workers have one core more if the division leaves some."""
    cores = _groups(cpus, lambda cpu: cpu.core)
    if len(cores) < workers:
        raise UsageError(
            f"--numa_binding 'exclusive': NUMA node {home} has {workers} workers and only {len(cores)} cores that the "
            "agent may use.",
            hint="Start fewer workers with --nproc_per_node, or bind them with --numa_binding=node.",
        )
    each, over = divmod(len(cores), workers)
    first = place * each + min(place, over)
    return [cpu for core in cores[first : first + each + (place < over)] for cpu in core]


def _complex(cpus: Iterable[Cpu], place: int) -> list[Cpu]:
    """Return the CPUs under one last cache: the caches with the most CPUs come first."""
    complexes = sorted(_groups(cpus, lambda cpu: cpu.cache), key=len, reverse=True)
    return complexes[place % len(complexes)]


def _groups(cpus: Iterable[Cpu], key: Callable[[Cpu], int]) -> list[list[Cpu]]:
    """Return the CPUs in groups with a common ``key``, in the order of those numbers."""
    return [list(group) for _, group in groupby(sorted(cpus, key=key), key)]
