"""Finds out which nodes of a run are alive, for a node that is not in it: their heartbeats are watched for a while.

The leader of a run learns from ``protocol/failure_detector.py`` which nodes of its run are alive.
"""

from __future__ import annotations

from collections.abc import Collection

from elastic_core.errors import RendezvousStateError
from elastic_core.protocol.failure_detector import PROOF_HEARTBEATS
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.roster import NodeInfo, NodeRow, Phase, find_gone_nodes
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.session.ledger_reader import said_by
from elastic_core.session.runtime import Runtime


def living_hosts(
    store: RendezvousBackend,
    ledger: Ledger,
    me: NodeInfo,
    runtime: Runtime,
    *,
    but: Collection[str] = (),
    node_rank: int | None = None,
) -> list[str]:
    """Return the hosts of a run whose heartbeats move, watched for ``lost_after``; at once where there are none.

    Nodes whose slots show that they are gone are watched for less (rule S8).

    Args:
        but: Nodes that do not count.
        node_rank: Only nodes that have this rank count; None for all.

    Raises:
        RendezvousConnectionError: The store cannot be reached.
    """
    timing = ledger.settings.timing
    runs = {ledger.head.run} if ledger.closed is not None else {ledger.head.run, ""}  # '': about to join, perhaps
    first: dict[str, tuple[int, int]] = {}
    moving = set[str]()
    began = runtime.now()
    deadline, proved_at = began + timing.lost_after, began + PROOF_HEARTBEATS * timing.beat_interval
    while True:
        here, alive, now = set(), dict[str, str](), runtime.now()
        for seen in store.roster():
            try:
                row = said_by(seen, runtime.codec)
            except RendezvousStateError:
                continue
            state = (seen.revision, seen.heartbeat)
            if first.setdefault(seen.node_id, state) != state:
                moving.add(seen.node_id)
            may_be_gone = now >= proved_at and seen.node_id not in moving
            gone = may_be_gone and seen.node_id in find_gone_nodes((row, NodeRow(info=me)))
            left = row.leaving and row.phase is not Phase.RUNNING
            other_rank = node_rank is not None and row.info.node_rank != node_rank
            if row.run in runs and seen.node_id not in but and not (gone or left or other_rank):
                here.add(seen.node_id)
                if row.run and seen.node_id in moving:  # a node that is being checked is in no run (rule L17)
                    alive[seen.node_id] = str(row.info)
        if runtime.now() >= deadline or here == alive.keys():
            return sorted(alive.values())
        until_proved = proved_at - runtime.now()
        runtime.sleep(until_proved if 0 < until_proved < timing.beat_interval else timing.beat_interval)
