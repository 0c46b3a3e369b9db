"""Succession: which node becomes the leader when the leader is gone, and when (rules S1, L1, L2).

Successors take turns in rank order, before the first round in order of arrival, far enough apart that usually one of
them writes the LEADER entry and the others read it. If two write, the ledger accepts one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from elastic_core.protocol.leader_view import head_patience, patience
from elastic_core.protocol.ledger import Ledger

SUCCESSOR_SPACING_SECONDS = 0.5  # the time between the turns of two successors


def succession_place(ledger: Ledger, arrivals: Sequence[str], node_id: str) -> int:
    """Return how many nodes come before ``node_id``; ``arrivals`` are the ids in the roster in order of serial."""
    ranks = ledger.round.group_ranks if ledger.round is not None else {}
    if node_id in ranks:
        return ranks[node_id] - (ranks.get(ledger.leader, len(ranks)) < ranks[node_id])
    heirs = [other for other in dict.fromkeys([*ranks, *arrivals]) if other != ledger.leader]
    return heirs.index(node_id) if node_id in heirs else len(heirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSigns:
    """The signs of life of the leader that a node has, by its own monotonic clock."""

    heartbeat_changed_at: float
    """When this node last saw the leader's heartbeat change, over its own successful heartbeats."""
    reported_at: float | None = None
    """When this node reported an incident that no ledger entry has answered; None if there is none."""
    gap_at: float = -math.inf
    """When this node last had the store back after it was cut off, as the leader may have been too."""


def takeover_at(ledger: Ledger, signs: LeaderSigns, place: float) -> float:
    """Return when the successor at ``place`` becomes the leader, unless the leader gives a sign of life before.

    A silent leader has the same limit as any node. An incident that gets no entry within the suspicion delay is the
    faster sign. The delay starts at the newest entry at the earliest, so a new leader has the full delay. A leader that
    may have been cut off from the store gets a full period to return.
    """
    due = signs.heartbeat_changed_at + ledger.settings.timing.lost_after
    if signs.reported_at is not None:
        back = signs.gap_at + ledger.settings.timing.lost_after
        due = min(due, max(signs.reported_at + patience(ledger), ledger.head_at + head_patience(ledger), back))
    return due + SUCCESSOR_SPACING_SECONDS * place
