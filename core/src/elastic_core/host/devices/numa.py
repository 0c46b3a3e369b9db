"""``--numa_binding``: which CPUs each worker runs on, close to its accelerator and so to its memory.

The modes are torchrun's (2.13, ``torch.numa.binding``); ``docs/migrating.md`` lists the differences. A worker's *home*
is the NUMA node of the visible accelerator whose number is its local rank. Memory is not bound: Linux takes a page from
the node of the CPU that touches it first. With a policy (``set_mempolicy``) a full node would kill a worker instead of
borrowing from another node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

from elastic_core.config.parse import NUMA_BINDINGS
from elastic_core.errors import UsageError, did_you_mean
from elastic_core.host.devices.topology import Cpu, Topology


def worker_cpus(mode: str, local_rank: int, local_world_size: int, topology: Topology) -> frozenset[int]:
    """Return the CPUs of a worker: at least one, and only CPUs that the agent has.

    * ``node``: every CPU of its home. If in doubt, this one.
    * ``socket``: every CPU of the sockets that its home is on; like ``node`` if a socket is one node.
    * ``exclusive``: the cores of its home, shared out evenly; no two workers have a core in common.
    * ``core-complex``: the CPUs under one last cache of its home, another for each worker as long as there are any.

    Raises:
        UsageError: ``mode`` is none of ``NUMA_BINDINGS``, or the home has fewer cores than exclusive workers.
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
        case "core-complex":
            chosen = _complex(cpus, place)
        case _:
            known, meant = ", ".join(NUMA_BINDINGS), did_you_mean(mode, NUMA_BINDINGS)
            raise UsageError(f"--numa_binding {mode!r} is none of {known}.{meant}")
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
