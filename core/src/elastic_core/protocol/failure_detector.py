"""The failure detector: which nodes are alive, from roster rows and heartbeats, and who follows a lost leader.

A node is lost when its heartbeat and its row have not changed for long enough over the leader's *own successful reads*,
by the leader's monotonic clock (rule L1). It is lost sooner if other nodes on its host have seen that its slot is free
(rule S8), unless its heartbeat still grows. Wall clocks of different hosts are never compared, and no expiry in a store
is used.

If the node that is lost, or that does not answer, is the leader, a successor takes its place (rules S1, L1, L2).
Successors take turns in rank order, before the first round in order of arrival, far enough apart that usually one of
them writes the LEADER entry and the others read it. If two write, the ledger accepts one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from elastic_core.config.run import Timing
from elastic_core.protocol.entries import Resume
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.roster import NodeRow, find_gone_nodes

CONTACT_GAP_MAX_SECONDS = 3.0  # upper limit of :func:`contact_gap`, where heartbeats and reads are fast

LOOKS_PER_SILENCE = 4
"""The fewest reads of the roster by the leader within ``lost_after``. A heartbeat is read up to one interval after it
was sent, so a silent node is found within ``lost_after`` and a quarter of it."""

PROOF_HEARTBEATS = 1.5
"""Heartbeat intervals without a heartbeat after which a proof that a node is gone counts. A live node is not silent for
that long unless it is cut off. (The check is needed because two machines may have the same host id.)"""
CONTRADICTIONS_MAX = 2
"""The times that the heartbeat of a node proved to be gone must grow before its host is distrusted. Once is not
enough: the last heartbeat of a dead node may arrive late, and at most one is on its way."""

SUSPICION_SECONDS = 1.0
"""A node that has not shown that it read an entry is suspected after at least this long (rule L2)."""
SUSPICION_FACTOR = 3.0
"""A node is suspected after at least this many times the longest delay that the job has seen (rule L2)."""
SUCCESSOR_SPACING_SECONDS = 0.5  # the time between the turns of two successors


def contact_gap(timing: Timing, look: float = 0.0) -> float:
    """Return after how many seconds without contact a node judges no other node for one full period (rule L1).

    That is more than a heartbeat interval, because a node reads the store once per heartbeat, and well below the limit
    by which it judges others. If one read of the roster takes ``look`` seconds, it is at least half as long again:
    thousands of rows take time.
    """
    return max(min(CONTACT_GAP_MAX_SECONDS, timing.lost_after / 2), 1.5 * timing.beat_interval, 1.5 * look)


def roster_read_interval(timing: Timing) -> float:
    """Return the seconds between the starts of two reads of the roster by the leader, if nothing wakes it sooner."""
    return min(timing.beat_interval, timing.lost_after / LOOKS_PER_SILENCE)


@dataclass(frozen=True, slots=True)
class Observation:
    """One decoded roster row, as :func:`observe` takes it."""

    row: NodeRow
    serial: int
    heartbeat: int
    revision: int = 0  # grows as long as the node lives, even if the store loses rows (rule S7)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView(Observation):
    """The node view: what the leader has observed of one node. Instants are its monotonic clock, in seconds."""

    arrived_at: float
    changed_at: float  # when its heartbeat or its row last changed
    seen_at: float  # when its row first showed its present :attr:`NodeRow.head`
    sign_at: float = -math.inf
    """When the leader itself saw its heartbeat or its row change; its first appearance does not count."""
    listed: bool = True
    """True if the newest read had its current row. Otherwise the node is judged by its heartbeats alone."""
    highest: int = 0  # The highest heartbeat that was read. A store that was restored from a copy shows lower ones.
    contradictions: int = 0  # how often :attr:`highest` has grown since the node was proved to be gone
    reported_at: float = -math.inf  # when its row first showed its present incident

    @property
    def node_id(self) -> str:
        """The node's id."""
        return self.row.info.node_id


@dataclass(frozen=True, slots=True)
class DeposedLeader:
    """The old leader as its successor last observed it: its silence until then counts."""

    node_id: str
    heartbeat: int
    changed_at: float
    unanswered: bool = False
    """True if it was deposed because it did not answer an incident, and not for a missing heartbeat (rule L2)."""


@dataclass(frozen=True)
class Watch:
    """All nodes that the leader has seen in this run and has not forgotten, in order of arrival."""

    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    read_at: float | None = None
    began_at: float = -math.inf
    """When it first read the roster. A member without a row is lost as late as one that was silent since then (L1)."""
    gap_at: float = -math.inf
    """When the leader last had the store back after it was cut off; what it read then may be old."""
    deposed: DeposedLeader | None = None
    proven: frozenset[str] = frozenset()
    """Nodes that were proved or vouched to be gone earlier. That stands even if the row that proved it disappears."""
    distrusted: frozenset[str] = frozenset()
    """The host ids for which a proof was contradicted: two machines share one, so its rows prove nothing."""

    # Computed once per read: a question about each node must not go through all nodes again.

    @cached_property
    def gone(self) -> frozenset[str]:
        """The ids of the nodes whose last process is gone, as rows of their hosts or a vouching prove (rule S8)."""
        rows = [node.row for node in self.nodes.values() if node.row.info.host_id not in self.distrusted]
        return self.proven & {row.info.node_id for row in rows} | find_gone_nodes(rows)

    @cached_property
    def most_changed_at(self) -> float:
        """The instant after which fewer than half of the nodes have given a sign of life."""
        return sorted(node.changed_at for node in self.nodes.values())[len(self.nodes) // 2]


def mark_interrupted(watch: Watch) -> Watch:
    """Return the watch of a leader whose connection broke: that counts as a gap, however short it was (rule L1).

    Other nodes were probably cut off as well, and not all of them return at once.
    """
    return watch if watch.read_at is None else replace(watch, read_at=-math.inf)


def forget_older_epochs(watch: Watch, epoch: int) -> Watch:
    """Return the watch without what rows said about older epochs, for a leader that decides in this epoch.

    This matters most for rows that the store has lost: their nodes may never enter them again.
    """
    stale = {
        node_id: replace(node, row=row)
        for node_id, node in watch.nodes.items()
        if (row := node.row.within(epoch)) is not node.row
    }
    return replace(watch, nodes={**watch.nodes, **stale}) if stale else watch


def observe(
    watch: Watch, rows: Iterable[Observation], now: float, *, gap: float = CONTACT_GAP_MAX_SECONDS, slept: float = 0.0
) -> Watch:
    """Return the watch after one successful read of the whole roster, which was sent at ``now``.

    ``gap`` seconds without an answer count as a gap (:func:`contact_gap`), but not the ``slept`` seconds since the last
    read for which the reader waited on purpose.
    """
    cut_off = watch.read_at is not None and now - watch.read_at - slept > gap
    nodes = {}
    for observed in sorted(rows, key=lambda observed: observed.serial):
        old = watch.nodes.get(observed.row.info.node_id)
        highest, contradictions = _highest_heartbeat(watch, old, observed)
        listed = True
        if old is not None and observed.revision < old.revision:  # an old copy; the node will send its row again
            observed, listed = replace(observed, row=old.row, revision=old.revision), False
        sign = old is not None and (old.heartbeat, old.row) != (observed.heartbeat, observed.row)
        changed_at = _last_sign_at(watch, observed, now) if old is None else now if cut_off or sign else old.changed_at
        node_view = NodeView(
            row=observed.row,
            serial=observed.serial,
            heartbeat=observed.heartbeat,
            arrived_at=now if old is None else old.arrived_at,
            changed_at=changed_at,
            seen_at=now if old is None or old.row.head != observed.row.head else old.seen_at,
            sign_at=now if sign else -math.inf if old is None else old.sign_at,
            listed=listed,
            revision=observed.revision,
            highest=highest,
            contradictions=contradictions,
            reported_at=now if old is None or old.row.incident != observed.row.incident else old.reported_at,
        )
        nodes[node_view.node_id] = node_view
    for node_id, old in watch.nodes.items():
        if node_id not in nodes:
            nodes[node_id] = replace(old, listed=False, changed_at=now if cut_off else old.changed_at)
    in_order = dict(sorted(nodes.items(), key=lambda item: item[1].serial))
    vouched_for = {node_id for node in nodes.values() for node_id in node.row.release}
    contradicted = {node.row.info.host_id for node in nodes.values() if node.contradictions >= CONTRADICTIONS_MAX}
    return replace(
        watch,
        nodes=in_order,
        read_at=now,
        began_at=now if watch.read_at is None or cut_off else watch.began_at,
        gap_at=now if cut_off else watch.gap_at,
        proven=(watch.gone | vouched_for) & in_order.keys(),
        distrusted=watch.distrusted | contradicted,
    )


def _highest_heartbeat(watch: Watch, old: NodeView | None, observed: Observation) -> tuple[int, int]:
    """Return the highest heartbeat, and how often its growth has contradicted a proof that the node is gone."""
    if old is None:
        return observed.heartbeat, 0
    if observed.heartbeat <= old.highest:
        return old.highest, old.contradictions
    return observed.heartbeat, old.contradictions + (old.node_id in watch.gone)


def _last_sign_at(watch: Watch, observed: Observation, now: float) -> float:
    """Return when a node that is seen for the first time last gave a sign of life.

    That is now, except for the old leader: its heartbeat counts as unchanged since its successor last saw it change.
    A row that appears after the leader's first read is a sign of life by itself.
    """
    deposed = watch.deposed if watch.read_at is None else None
    if deposed is not None and (deposed.node_id, deposed.heartbeat) == (observed.row.info.node_id, observed.heartbeat):
        return deposed.changed_at
    return now


def vouch(watch: Watch, node_ids: Iterable[str]) -> Watch:
    """Return the watch after a plugin or an operator vouched that these nodes are gone, a proof as in rule S8."""
    return replace(watch, proven=watch.gone | (watch.nodes.keys() & set(node_ids)))


def forget(watch: Watch, node_ids: Iterable[str]) -> Watch:
    """Return the watch without these nodes."""
    forgotten = set(node_ids)
    nodes = {node_id: node for node_id, node in watch.nodes.items() if node_id not in forgotten}
    return replace(watch, nodes=nodes, proven=watch.gone & nodes.keys())


def is_lost(watch: Watch, node_id: str, timing: Timing, now: float) -> bool:
    """Return True if a node is silent beyond its limit (:func:`silence_deadline`), or had no row for as long."""
    node = watch.nodes.get(node_id)
    if node is None:
        return now >= watch.began_at + timing.lost_after
    return now >= silence_deadline(watch, node, timing)


def silence_deadline(watch: Watch, node: NodeView, timing: Timing) -> float:
    """Return when a node is lost if it gives no sign of life until then.

    If most of at least four nodes fall silent together, the store is the likelier cause: they get twice the time (rule
    L1). A node that is proved to be gone gets less.
    """
    if node.node_id in watch.gone:
        return node.changed_at + PROOF_HEARTBEATS * timing.beat_interval
    limit = timing.lost_after
    if len(watch.nodes) > 3 and watch.read_at is not None and watch.read_at - watch.most_changed_at >= limit:
        limit *= 2
    return node.changed_at + limit


# Suspicion, and succession -------------------------------------------------------------------------------------------


def patience(ledger: Ledger) -> float:
    """Return how many seconds a node that reports an incident waits for an answer from the leader (rule L2).

    Both compute it from the ledger, so they agree on it.
    """
    return max(SUSPICION_SECONDS, SUSPICION_FACTOR * ledger.counters.worst_seen)


def head_patience(ledger: Ledger) -> float:
    """Return how many seconds nodes have, from the newest entry on, to show that they read it.

    Nodes learn of a RESUME only by their next heartbeat, so it gets the time of a heartbeat limit.
    """
    return ledger.settings.timing.lost_after if isinstance(ledger.head.body, Resume) else patience(ledger)


def succession_place(ledger: Ledger, arrivals: Sequence[str], node_id: str) -> int:
    """Return how many nodes come before ``node_id``; ``arrivals`` are the ids in the roster in order of serial."""
    ranks = ledger.ranks
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
