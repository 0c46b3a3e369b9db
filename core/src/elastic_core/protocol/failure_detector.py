"""What the leader sees of the nodes: roster rows, and how long each heartbeat has stood still.

Liveness is judged here and nowhere else (rule L1): by values that stop changing over the leader's *own successful
reads*, on its own monotonic clock; or, sooner, by what others on a node's host have seen of its slot (rule S8), which a
heartbeat that goes on contradicts. No host's wall clock is compared with another's, and no store's time to live is
believed. :func:`observe` is pure; the driver calls it once for every successful read of the roster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from elastic_core.config.run import Timing
from elastic_core.protocol.roster import NodeRow, find_gone_nodes

CONTACT_GAP_MAX_SECONDS = 3.0
"""Seconds without contact after which a node judges nobody for one full period, at most; see :func:`contact_gap`."""

LOOKS_PER_SILENCE = 4
"""Looks at the roster that the leader takes while a node is silent for ``lost_after``, at least: a heartbeat is seen up
to one distance of looks after it was sent, so a silent node is found within ``lost_after`` and a quarter of it."""

PROOF_HEARTBEATS = 1.5
"""Heartbeats for which the heartbeat of a node that is proved to be gone must have stood still, before the proof
counts: that of a node which lives never stands still for so long, unless it is cut off. (Two machines may have one
host id.)"""
CONTRADICTIONS_MAX = 2
"""How often the heartbeat of a node that is proved to be gone must have grown, until its host is distrusted. Once is no
contradiction: the last heartbeat of a dead node may arrive late, and it has only one on its way."""


def contact_gap(timing: Timing, look: float = 0.0) -> float:
    """Seconds without contact after which a node judges nobody for one full period (rule L1).

    More than a heartbeat, since it looks once a heartbeat; and well below what others are judged by. Where one look at
    the roster takes ``look`` seconds, half as much more than that, too: thousands of rows take time to read.
    """
    return max(min(CONTACT_GAP_MAX_SECONDS, timing.lost_after / 2), 1.5 * timing.beat_interval, 1.5 * look)


def look_interval(timing: Timing) -> float:
    """Seconds between the beginnings of two looks of the leader at the roster, where nothing wakes it sooner."""
    return min(timing.beat_interval, timing.lost_after / LOOKS_PER_SILENCE)


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node, as the leader sees it. Instants are the leader's monotonic clock, in seconds."""

    row: NodeRow
    serial: int
    heartbeat: int
    arrived_at: float
    changed_at: float
    """When its heartbeat or its row last changed."""
    seen_at: float
    """When its row first showed its present :attr:`NodeRow.head`."""
    sign_at: float = -math.inf
    """When the leader itself saw its heartbeat or its row change; that it was seen for the first time is no such
    sign."""
    listed: bool = True
    """Whether the newest read still had it, and no older one; without it the node is judged by its heartbeats alone."""
    revision: int = 0
    """The row's, which grows for as long as the node lives, whatever its store forgets (rule S7)."""
    highest: int = 0
    """The highest heartbeat that was seen of it; a store that has gone back to a copy of itself shows lower ones."""
    contradictions: int = 0
    """How often that has grown since the node was proved to be gone."""
    reported_at: float = -math.inf
    """When its row first showed its present incident."""

    @property
    def node_id(self) -> str:
        """The node's id."""
        return self.row.info.node_id


@dataclass(frozen=True, slots=True)
class DeposedLeader:
    """What a node had heard of the old leader when it took its place: it need not be silent for another period."""

    node_id: str
    heartbeat: int
    changed_at: float
    unanswered: bool = False
    """Whether it was deposed because an incident got no entry, and not for a heartbeat that stood still (rule L2)."""


@dataclass(frozen=True)
class Watch:
    """Everybody that the leader has ever seen in this run and not yet forgotten, in order of arrival."""

    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    read_at: float | None = None
    began_at: float = -math.inf
    """When it first looked: who has no row then gets as long as one whose heartbeat stopped (rule L1)."""
    gap_at: float = -math.inf
    """Until when the leader was last not looking; what it then saw may have been there for long."""
    deposed: DeposedLeader | None = None
    proven: frozenset[str] = frozenset()
    """Who was proved, or vouched for, to be gone before: that stands, whatever becomes of the row that said so."""
    distrusted: frozenset[str] = frozenset()
    """The host ids of which a proof was contradicted: two machines have it, and no row proves anything there."""

    def get(self, node_id: str) -> NodeView | None:
        """The node view of a node; None for one that was never seen."""
        return self.nodes.get(node_id)

    # Of all nodes, once for each look: whatever is asked of every node must not look at every other one.

    @cached_property
    def gone(self) -> frozenset[str]:
        """The ids of the nodes whose last process is gone, as rows and slots prove (rule S8)."""
        rows = [node.row for node in self.nodes.values() if node.row.info.host_id not in self.distrusted]
        return self.proven & {row.info.node_id for row in rows} | find_gone_nodes(rows)

    @cached_property
    def most_changed_at(self) -> float:
        """The instant up to which more than half of the nodes last gave a sign."""
        return sorted(node.changed_at for node in self.nodes.values())[len(self.nodes) // 2]


@dataclass(frozen=True, slots=True)
class Observation:
    """One decoded roster row: what :func:`observe` takes."""

    row: NodeRow
    serial: int
    heartbeat: int
    revision: int = 0


def mark_interrupted(watch: Watch) -> Watch:
    """The watch of a leader whose connection has broken: that is a gap, however short it was (rule L1).

    Others were cut off as well, and need not all be back at once.
    """
    return watch if watch.read_at is None else replace(watch, read_at=-math.inf)


def forget_older_epochs(watch: Watch, epoch: int) -> Watch:
    """The watch of a leader that decides in this epoch: what rows said of an older one says nothing of it.

    That goes for those above all that the store has lost, and that nobody may ever enter again.
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
    """The watch after one successful read of the whole roster at ``now``.

    Args:
        watch: The watch before.
        rows: What was read.
        now: When that was asked for.
        gap: Seconds without an answer that are a gap, as :func:`contact_gap` says.
        slept: Seconds since the last read that the reader waited because it chose to.
    """
    cut_off = watch.read_at is not None and now - watch.read_at - slept > gap
    nodes = {}
    for observed in sorted(rows, key=lambda observed: observed.serial):
        old = watch.get(observed.row.info.node_id)
        highest, contradictions = _highest_heartbeat(watch, old, observed)
        if (
            old is not None and observed.revision < old.revision
        ):  # from a copy of the store; the node will send it again
            changed_at = now if cut_off or old.heartbeat != observed.heartbeat else old.changed_at
            sign_at = now if old.heartbeat != observed.heartbeat else old.sign_at
            nodes[old.node_id] = replace(
                old,
                serial=observed.serial,
                heartbeat=observed.heartbeat,
                changed_at=changed_at,
                sign_at=sign_at,
                listed=False,
                highest=highest,
                contradictions=contradictions,
            )
            continue
        sign = old is not None and (old.heartbeat, old.row) != (observed.heartbeat, observed.row)
        node_view = NodeView(
            row=observed.row,
            serial=observed.serial,
            heartbeat=observed.heartbeat,
            arrived_at=now if old is None else old.arrived_at,
            changed_at=_last_sign_at(watch, observed, now)
            if old is None
            else now
            if cut_off or sign
            else old.changed_at,
            seen_at=now if old is None or old.row.head != observed.row.head else old.seen_at,
            sign_at=now if sign else -math.inf if old is None else old.sign_at,
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
    began_at = now if watch.read_at is None or cut_off else watch.began_at
    gap_at = now if cut_off else watch.gap_at
    vouched_for = {node_id for node in nodes.values() for node_id in node.row.release}
    contradicted = {node.row.info.host_id for node in nodes.values() if node.contradictions >= CONTRADICTIONS_MAX}
    return replace(
        watch,
        nodes=in_order,
        read_at=now,
        began_at=began_at,
        gap_at=gap_at,
        proven=(watch.gone | vouched_for) & in_order.keys(),
        distrusted=watch.distrusted | contradicted,
    )


def _highest_heartbeat(watch: Watch, old: NodeView | None, observed: Observation) -> tuple[int, int]:
    """The highest heartbeat, and how often one that grew has contradicted that the node is gone."""
    if old is None:
        return observed.heartbeat, 0
    if observed.heartbeat <= old.highest:
        return old.highest, old.contradictions
    return observed.heartbeat, old.contradictions + (old.node_id in watch.gone)


def _last_sign_at(watch: Watch, observed: Observation, now: float) -> float:
    """When a node that is seen for the first time last gave a sign: now, unless it is the old leader, and still.

    A row that was not there when the leader first looked is a sign by itself.
    """
    deposed = watch.deposed if watch.read_at is None else None
    if deposed is not None and (deposed.node_id, deposed.heartbeat) == (observed.row.info.node_id, observed.heartbeat):
        return deposed.changed_at
    return now


def vouch(watch: Watch, node_ids: Iterable[str]) -> Watch:
    """The watch, now that somebody vouches that these nodes are gone for good: a proof as that of rule S8."""
    return replace(watch, proven=watch.gone | (watch.nodes.keys() & set(node_ids)))


def forget(watch: Watch, node_ids: Iterable[str]) -> Watch:
    """The watch without these nodes."""
    forgotten = set(node_ids)
    nodes = {node_id: node for node_id, node in watch.nodes.items() if node_id not in forgotten}
    return replace(watch, nodes=nodes, proven=watch.gone & nodes.keys())


def is_lost(watch: Watch, node_id: str, timing: Timing, now: float) -> bool:
    """Whether a node is lost: silent beyond the limit, which is less for one that is gone from its slot, or without a
    row for as long.
    """
    node = watch.get(node_id)
    if node is None:
        return now >= watch.began_at + timing.lost_after
    return now >= silence_deadline(watch, node, timing)


def is_proved_gone(watch: Watch, node: NodeView, timing: Timing, now: float) -> bool:
    """Whether a node is proved to be gone from its slot, and its heartbeat does not contradict that (rule S8)."""
    return node.node_id in watch.gone and now >= silence_deadline(watch, node, timing)


def silence_deadline(watch: Watch, node: NodeView, timing: Timing) -> float:
    """The instant at which a node counts as lost if nothing is heard of it until then.

    When most of three or more others fall silent together, the store is the likelier cause, and they get twice the
    time (rule L1). One that is proved to be gone has less.
    """
    if node.node_id in watch.gone:
        return node.changed_at + PROOF_HEARTBEATS * timing.beat_interval
    limit = timing.lost_after
    if len(watch.nodes) > 3 and watch.read_at is not None and watch.read_at - watch.most_changed_at >= limit:
        limit *= 2
    return node.changed_at + limit
