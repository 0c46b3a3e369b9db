"""When the leader is gone, who takes it, and when (rules S1, L1, L2).

Successors stand in rank order, before the first round in order of arrival, half a second apart, so that mostly one
of them writes the LEADER entry and the others read it. Should two write, the ledger takes one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from elastic_core.protocol.leader_view import head_patience, patience
from elastic_core.protocol.ledger import Ledger

SUCCESSOR_SPACING_SECONDS = 0.5
"""Seconds between one successor's turn and the next one's."""


def succession_place(ledger: Ledger, arrivals: Sequence[str], node_id: str) -> int:
    """How many would become the leader before ``node_id``; ``arrivals`` are the roster's ids in order of serial."""
    ranks = ledger.round.group_ranks if ledger.round is not None else {}
    if node_id in ranks:
        return ranks[node_id] - (ranks.get(ledger.leader, len(ranks)) < ranks[node_id])
    heirs = [other for other in dict.fromkeys([*ranks, *arrivals]) if other != ledger.leader]
    return heirs.index(node_id) if node_id in heirs else len(heirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSigns:
    """What a node knows of the leader's life, by its own monotonic clock."""

    heartbeat_changed_at: float
    """When the leader's heartbeat was last seen to change, over this node's own successful heartbeats."""
    reported_at: float | None = None
    """When this node reported an incident that no ledger entry has answered; None when there is none."""
    gap_at: float = -math.inf
    """When this node had the store back after it had last been cut off, as the leader may have been."""


def takeover_at(ledger: Ledger, signs: LeaderSigns, place: float) -> float:
    """The instant at which the successor at ``place`` becomes the leader, unless something is heard from it before.

    A silent leader is given the same limit as any node. An incident that gets no entry within the suspicion delay is
    the faster sign; it deposes only a leader that was in office before it was reported, so a new one starts with a
    clean slate. A leader that may have been cut off has a full period to be back.
    """
    due = signs.heartbeat_changed_at + ledger.settings.timing.lost_after
    if signs.reported_at is not None:
        back = signs.gap_at + ledger.settings.timing.lost_after
        due = min(due, max(signs.reported_at + patience(ledger), ledger.head_at + head_patience(ledger), back))
    return due + SUCCESSOR_SPACING_SECONDS * place
