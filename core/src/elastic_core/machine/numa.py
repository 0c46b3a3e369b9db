"""``--numa_binding``: which CPUs each worker may run on. Pure functions of what the machine has.

The modes are torch's (``torch.numa.binding``): *node*, all CPUs of the NUMA node of the worker's GPU; *socket*, all of
its physical package; *exclusive*, a share of its node's physical cores that no other worker of the node has;
*core-complex*, the CPUs around one last-level cache of its node. Worker ``i`` has GPU ``i``; workers without a GPU, or
on a machine that does not say where its GPUs are, are spread evenly over the nodes.

Memory needs no binding of its own: Linux takes it from the node of the CPU that first touches it.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastic_core.errors import UsageError
from elastic_core.machine.reading import NumaNode


def bindings(
    mode: str, workers: int, nodes: Sequence[NumaNode], gpu_nodes: Sequence[int | None], allowed: frozenset[int]
) -> tuple[frozenset[int], ...]:
    """The CPUs of each local rank.

    Args:
        mode: ``node``, ``socket``, ``exclusive`` or ``core-complex``.
        workers: How many there are on this node of the job.
        nodes: The machine's NUMA nodes, in order.
        gpu_nodes: The number of the NUMA node of each GPU that workers see, in their order; None where unknown.
        allowed: The CPUs that the agent itself may run on.

    Raises:
        UsageError: A worker would have no CPU at all.
    """
    homes = [_home(rank, workers, nodes, gpu_nodes) for rank in range(workers)]
    found = []
    for rank, home in enumerate(homes):
        peers = [other for other in range(workers) if homes[other] is home]
        cpus = _cpus(mode, home, nodes, peers.index(rank), len(peers), allowed) & allowed
        if not cpus:
            raise UsageError(
                f"--numa_binding {mode!r} leaves no CPU to local rank {rank}: NUMA node {home.number} has "
                f"{len(home.cpus & allowed)} that this process may use, for {len(peers)} worker(s).",
                hint="Use 'node', start fewer workers, or let the agent run on more CPUs.",
            )
        found.append(cpus)
    return tuple(found)


def _home(rank: int, workers: int, nodes: Sequence[NumaNode], gpu_nodes: Sequence[int | None]) -> NumaNode:
    """The NUMA node of a local rank."""
    number = gpu_nodes[rank] if rank < len(gpu_nodes) else None
    for node in nodes:
        if node.number == number:
            return node
    return nodes[rank * len(nodes) // workers]


def _cpus(
    mode: str, home: NumaNode, nodes: Sequence[NumaNode], place: int, peers: int, allowed: frozenset[int]
) -> frozenset[int]:
    if mode == "node":
        return home.cpus
    if mode == "socket":
        return frozenset().union(*(node.cpus for node in nodes if node.socket == home.socket))
    if mode == "exclusive":
        return _share([core for core in home.cores if core & allowed], place, peers)
    groups = [group for group in home.complexes if group & allowed]
    groups.sort(key=lambda group: (-len(group & allowed), min(group)))
    return groups[place % len(groups)] if groups else frozenset()


def _share(cores: Sequence[frozenset[int]], place: int, peers: int) -> frozenset[int]:
    """Every peer's cores stand together; the first ones get what does not divide."""
    size, more = divmod(len(cores), peers)
    start = place * size + min(place, more)
    return frozenset().union(*cores[start : start + size + (place < more)])
