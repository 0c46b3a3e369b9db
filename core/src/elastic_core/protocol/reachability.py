"""Which member the others cannot reach, by the probes of the members of a failed round (rule L5)."""

from __future__ import annotations

from collections import Counter

from elastic_core.protocol.entries import Halt, HaltReason, Round
from elastic_core.protocol.leader_view import LeaderView
from elastic_core.protocol.roster import NodeRow, Phase

PROBE_WAIT_SECONDS = 3.0
"""The time that the leader waits for the members' probes after a HALT; on a healthy network they take milliseconds."""

FAILURE_REASONS = (HaltReason.FAILURE, HaltReason.GIVING_UP)
"""The reasons of a HALT after which all members of the round probe each other."""


def broken_connections(view: LeaderView, old: Round) -> list[tuple[str, str]]:
    """Return the pairs of members of which the first could not reach the second, by probes that still count."""
    ids = old.group_ranks
    return [
        (node.node_id, other)
        for node in view.node_views(old)
        if _is_probe_current(view, old, node.row)
        for other in node.row.unreachable
        if other in ids and other != node.node_id
    ]


def _is_probe_current(view: LeaderView, old: Round, row: NodeRow) -> bool:
    """Return True if a node's newest probe says something about this round.

    Before a HALT, the probe after the previous round counts. After a HALT for a failure, all members of the round probe
    again, and an older probe counts only from a node that started no workers since. The round may have trained for
    hours, and a node that gives no new answer may be the one whose loss ended it.
    """
    if row.probed == old.number:
        return True
    halt = view.ledger.halt
    stale = halt is not None and (halt.reason not in FAILURE_REASONS or row.round >= old.number)
    return row.probed == old.number - 1 and not stale


def find_unreachable(view: LeaderView, old: Round) -> str | None:
    """Return the member with the most broken connections; None if there are none.

    A member that reaches no other reports all of them, and one that no other reaches is reported by all of them, so
    both ends of a broken connection count. Ties are broken by reports of other members, then by reports of nodes
    outside the round (the same member may have caused them to be left out before), then by rank: the highest rank goes,
    because rank 0 has the training state.
    """
    found = broken_connections(view, old)
    ends = Counter(node_id for pair in found for node_id in pair)
    blamed = Counter(other for _, other in found)
    ids = old.group_ranks
    outside = Counter(o for node in view.watch.nodes.values() if node.node_id not in ids for o in node.row.unreachable)
    worst = max((ends[i], blamed[i], outside[i], rank, i) for rank, i in enumerate(ids))
    return worst[-1] if worst[0] else None


def describe_unreachable(view: LeaderView, old: Round, node_id: str) -> str:
    """Describe which connections of a node are broken."""
    found = broken_connections(view, old)
    by = sorted({one for one, other in found if other == node_id})
    if by:
        return f"{view.describe_nodes([node_id])} cannot be reached from {view.describe_nodes(by)}"
    missed = sorted({other for one, other in found if one == node_id})
    return f"{view.describe_nodes([node_id])} cannot reach {view.describe_nodes(missed)}"


def probes_awaited_until(view: LeaderView, old: Round, halt: Halt, fit: list[str]) -> float | None:
    """Return until when to wait for probes that are still under way; None if none are."""
    until = view.ledger.halt_at + PROBE_WAIT_SECONDS
    if halt.reason not in FAILURE_REASONS or len(old.members) < 2 or view.now >= until:
        return None
    rows = [node.row for node_id in fit if (node := view.get(node_id)) is not None]
    took_part = [row for row in rows if row.round == old.number and row.phase is not Phase.FINISHED]
    return until if any(row.info.port and row.probed < old.number for row in took_part) else None
