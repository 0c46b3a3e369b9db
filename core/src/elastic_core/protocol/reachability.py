"""Whom the others cannot reach: what the members of a failed round have found out by probing (rule L5)."""

from __future__ import annotations

from collections import Counter

from elastic_core.protocol.leader_view import LeaderView
from elastic_core.protocol.ledger import Halt, HaltReason, Round
from elastic_core.protocol.roster import NodeRow, Phase

PROBE_WAIT_SECONDS = 3.0
"""Seconds after a HALT to wait for the members' probes; those of a sound network take milliseconds."""

FAILURE_REASONS = (HaltReason.FAILURE, HaltReason.GIVING_UP)
"""Why a round is halted that has failed: all who took part in it probe then."""


def broken_connections(view: LeaderView, old: Round) -> list[tuple[str, str]]:
    """Who could not reach whom, among the members of a round that has failed, by what counts of what they found."""
    ids = old.group_ranks
    return [
        (node.node_id, other)
        for node in view.node_views(old)
        if _is_probe_current(view, old, node.row)
        for other in node.row.unreachable
        if other in ids and other != node.node_id
    ]


def _is_probe_current(view: LeaderView, old: Round, row: NodeRow) -> bool:
    """Whether what a node has found out says something of this round.

    Until there is a HALT, what it found after the one before does. At one for a failure all who took part probe anew:
    then only who has started no workers since is believed for what it found before. The round may have trained for
    hours, and who gives no new answer may be the one whose loss has ended it.
    """
    if row.probed == old.number:
        return True
    halt = view.ledger.halt
    stale = halt is not None and (halt.reason not in FAILURE_REASONS or row.round >= old.number)
    return row.probed == old.number - 1 and not stale


def find_unreachable(view: LeaderView, old: Round) -> str | None:
    """The member with most broken connections; None without complaints.

    One that hears nobody complains of all, and one that nobody hears is complained of by all: so both ends count. Where
    that says nothing, more complaints of others decide, then those of nodes outside the round, which may have been left
    out before for the same member's sake, and then the place in rank order: rank 0 has the state.
    """
    found = broken_connections(view, old)
    ends = Counter(node_id for pair in found for node_id in pair)
    blamed = Counter(other for _, other in found)
    ids = old.group_ranks
    outside = Counter(o for node in view.watch.nodes.values() if node.node_id not in ids for o in node.row.unreachable)
    worst = max((ends[i], blamed[i], outside[i], rank, i) for rank, i in enumerate(ids))
    return worst[-1] if worst[0] else None


def describe_unreachable(view: LeaderView, old: Round, node_id: str) -> str:
    """What is wrong with a node, for people."""
    found = broken_connections(view, old)
    by = sorted({one for one, other in found if other == node_id})
    if by:
        return f"{view.describe_nodes([node_id])} cannot be reached from {view.describe_nodes(by)}"
    missed = sorted({other for one, other in found if one == node_id})
    return f"{view.describe_nodes([node_id])} cannot reach {view.describe_nodes(missed)}"


def probes_awaited_until(view: LeaderView, old: Round, halt: Halt, fit: list[str]) -> float | None:
    """Until when to wait for probes that are still under way; None when there is nothing to wait for."""
    until = view.ledger.halt_at + PROBE_WAIT_SECONDS
    if halt.reason not in FAILURE_REASONS or len(old.members) < 2 or view.now >= until:
        return None
    rows = [node.row for node_id in fit if (node := view.get(node_id)) is not None]
    took_part = [row for row in rows if row.round == old.number and row.phase is not Phase.FINISHED]
    return until if any(row.info.port and row.probed < old.number for row in took_part) else None
