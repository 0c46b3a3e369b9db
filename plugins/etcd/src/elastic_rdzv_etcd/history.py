"""The growth of the history that etcd keeps by a job's heartbeats, and its compaction."""

from __future__ import annotations

from elastic_core.rendezvous import StoreWarning

BYTES_PER_HEARTBEAT = 200
"""The bytes that one heartbeat adds to etcd's history, measured (``benchmarks/RESULTS.md``)."""
DEFAULT_QUOTA = 2 << 30
"""Bytes after which etcd takes no more writes, unless ``--quota-backend-bytes`` says otherwise
(https://etcd.io/docs/latest/op-guide/maintenance/#space-quota)."""
YOUNG = 1000  # revisions below which a history that was never compacted is no finding
LEAST_DAYS = 30.0  # days for which a job must fit into the quota; most jobs are shorter


def days_until_full(nodes: int, beat_interval: float, used: int) -> float:
    """Return the days until the heartbeats of so many nodes fill the default quota; ``used`` bytes are taken."""
    return max(0, DEFAULT_QUOTA - used) / (BYTES_PER_HEARTBEAT * nodes / beat_interval) / 86_400


def history_warning(
    *, revision: int, compacted: bool, used: int, max_nodes: int, beat_interval: float, where: str
) -> StoreWarning | None:
    """Return a warning if the job fills etcd's quota; None if etcd is compacted, or too young to tell.

    ``used`` is in bytes; ``compacted`` says whether the first revisions were compacted.
    """
    days = days_until_full(max_nodes, beat_interval, used)
    if compacted or revision < YOUNG or days >= LEAST_DAYS:
        return None
    span = f"{days:.0f} days" if days >= 2 else f"{24 * days:.1f} hours"
    return StoreWarning(
        f"etcd at {where} keeps its whole history: all {revision} revisions, {used >> 20} MiB. The heartbeats of up to "
        f"{max_nodes} nodes (--nnodes) fill its default quota of 2 GiB in {span}, and then it takes no more writes.",
        "Start etcd with --auto-compaction-retention=1h, or raise --quota-backend-bytes.",
    )
