"""The ledger: the state of a run that follows from its entries (``entries``), in order.

An entry names the entry before it, so that every reader notices a gap or a fork. It carries enough (:class:`Anchors`,
:class:`Counters`) that a newcomer has to read only the newest entry and the few to which that points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from elastic_core.errors import RendezvousStateError
from elastic_core.protocol import entries
from elastic_core.protocol.entries import Anchors, Counters, Entry, HaltReason
from elastic_core.protocol.limits import fit_body
from elastic_core.protocol.settings import Settings
from elastic_core.rendezvous.backend import ORIGIN, STRANGER_HINT, Link


class HistoryChangedError(RendezvousStateError):
    """The store's history is not the one that this node has read. Other state errors mean that it cannot be read."""


@dataclass(frozen=True, slots=True)
class PlannedStop:
    """A PLAN for a live round, and the step at which its workers stop."""

    plan: entries.Plan
    read_at: float
    stop_at: entries.StopAt | None = None  # None before the step is known


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionState:
    """The newest QUESTION, and the ANSWERS of a round (rule L14)."""

    open: entries.Question | None = None  # the QUESTION of the round that no ANSWERS has followed
    index: int = 0  # of the newest QUESTION that this node has read in this run; 0 for none
    read_at: float = 0.0
    reports: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """The newest ANSWERS of each name in the round, as far as this node has read them: its index and report."""

    def answered_at(self, name: str) -> int:
        """Return the index of the newest ANSWERS of a name; 0 without one."""
        return self.reports[name][0] if name in self.reports else 0


@dataclass(frozen=True, slots=True)
class LastResize:
    """The last planned resize of a run (rule L4); a newcomer, and a reader of a RESUME, take it for just now."""

    over_at: float
    cost: float = 0.0  # seconds from its HALT to its ROUND, by the leader's clock; 0 if a member or the leader was lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The state of a run as a node knows it: the newest entry, and the entries on which it stands.

    Instants are when this node read the entry, by its own monotonic clock.
    """

    head: Entry
    opened: entries.Open
    opened_at: float
    head_at: float
    round: entries.Round | None = None  # the newest round, with its members listed even if the entry said ``same_as``
    round_at: float = 0.0
    halt: entries.Halt | None = None  # the HALT that ended :attr:`round`; None while it is live
    halt_at: float = 0.0
    planned_stop: PlannedStop | None = None  # the PLAN for :attr:`round`, while that is live
    over: entries.Over | None = None
    """The OVER of :attr:`round`, which says that it is over and which nodes have left it; None without one."""
    asked: frozenset[str] = frozenset()  # the nodes that a DRAIN has asked to leave
    questions: QuestionState = QuestionState()
    closed: entries.Closed | None = None
    last_resize: LastResize | None = None  # None before the first
    resumed_from: tuple[int, int] = (0, 0)  # the :attr:`position` of the history that the newest RESUME restored

    @property
    def settings(self) -> Settings:
        """The settings on which the run's nodes have agreed."""
        return self.opened.settings

    @property
    def is_live(self) -> bool:
        """True if a round is under way: there is a ROUND, and neither a HALT nor CLOSED after it."""
        return self.round is not None and self.halt is None and self.closed is None

    @property
    def position(self) -> tuple[int, int]:
        """The epoch and index of the newest entry; a greater position is newer."""
        return self.head.epoch, self.head.index

    @property
    def halted_at(self) -> float:
        """The latest instant at which :attr:`halt` can have been written, by this node's clock.

        :attr:`halt_at` is later on a node that read the HALT later; this instant is not.
        """
        return min(self.halt_at, self.head_at - self.head.since_halt)

    @property
    def leader(self) -> str:
        """The node that decides."""
        return self.head.leader

    @property
    def counters(self) -> Counters:
        """The newest counters."""
        return self.head.counters

    @property
    def ranks(self) -> Mapping[str, int]:
        """The rank of each member of the newest round, live or not, by node id, in order; empty before the first."""
        return {} if self.round is None else self.round.group_ranks

    def age(self, now: float) -> float:
        """Seconds since the run was opened, as the entries add them up."""
        return self.head.age + max(0.0, now - self.head_at)

    def is_member(self, node_id: str) -> bool:
        """Return True if ``node_id`` is a member of the newest round, live or not."""
        return node_id in self.ranks


def advance(ledger: Ledger, entry: Entry, now: float) -> Ledger:
    """Return the ledger after reading the next entry.

    Raises:
        HistoryChangedError: The entry was not built on the newest one, or another run is resumed here.
        RendezvousStateError: The entry cannot follow: its term is lower, the run is closed, its author is not the
            leader (rule S1), or it is about a round that is not there.
    """
    _check_follows(ledger, entry)
    return apply(ledger, entry, now)


def apply(ledger: Ledger, entry: Entry, now: float) -> Ledger:
    """Return the ledger after an entry that may follow. Its head has the anchors to which the entry's body leads.

    Only this function knows what each kind of entry changes: reading, composing and restoring all call it.
    """
    at, index = replace(ledger.head.anchors, kept=entry.anchors.kept), entry.index

    def after(at: Anchors, **changes: Any) -> Ledger:
        return replace(ledger, head=replace(entry, anchors=at), head_at=now, **changes)

    match entry.body:
        case entries.Open() | entries.Resume():
            return open_ledger(entry, now)
        case entries.Leader():
            return after(replace(at, leader=index))
        case entries.Round() as body:
            at = replace(at, latest=index, halt=0, plan=0, stop_at=0, over=0)
            if not body.same_as:
                at = replace(at, round=index)
            elif ledger.round is not None:
                body = replace(body, members=ledger.round.members, hosts=ledger.round.hosts)
            last = _last_resize(ledger, body, now, entry.since_halt)
            questions = replace(ledger.questions, open=None, reports={})
            ledger = replace(ledger, round=body, round_at=now, last_resize=last, questions=questions)
            return after(at, halt=None, planned_stop=None, over=None)
        case entries.Halt() as body:
            at = replace(at, halt=index, plan=0, stop_at=0)
            return after(at, halt=body, halt_at=now, planned_stop=None)
        case entries.Plan() as body:
            return after(replace(at, plan=index, stop_at=0), planned_stop=PlannedStop(body, now))
        case entries.StopAt() as body:
            stop = ledger.planned_stop and replace(ledger.planned_stop, stop_at=body)
            return after(replace(at, stop_at=index), planned_stop=stop)
        case entries.Over() as body:
            return after(replace(at, over=index), over=body)
        case entries.Drain() as body:
            return after(at, asked=ledger.asked | {*body.nodes})
        case entries.Question() as body:
            return after(at, questions=replace(ledger.questions, open=body, index=index, read_at=now))
        case entries.Answers() as body:
            reports = {**ledger.questions.reports, body.name: (index, body.report)}
            return after(at, questions=replace(ledger.questions, open=None, reports=reports))
        case entries.Closed() as body:
            return after(replace(at, halt=index, plan=0, stop_at=0, over=0), closed=body)


def _check_follows(ledger: Ledger, entry: Entry) -> None:
    """Refuse an entry that cannot follow the newest one; :func:`advance` says why that can be."""
    head, body = ledger.head, entry.body
    if entry.index != head.index + 1 or entry.prev != head.id:
        raise HistoryChangedError(
            f"Entry {entry.index} follows {entry.prev!r}, but entry {head.index} here is {head.id!r}.",
        )
    if isinstance(body, entries.Open) and ledger.closed is None:
        raise RendezvousStateError(f"Entry {entry.index} opens a run, but run {head.run} is not over.")
    if isinstance(body, entries.Resume) and entry.run != head.run:
        raise HistoryChangedError(f"Run {entry.run} goes on here; this node is in run {head.run}.")
    if isinstance(body, (entries.Open, entries.Resume)):
        return
    if entry.run != head.run or entry.term < head.term or ledger.closed is not None:
        raise RendezvousStateError(
            f"Entry {entry.index} (run {entry.run}, term {entry.term}) cannot follow run {head.run}, "
            f"term {head.term}" + (", which is closed." if ledger.closed else ".")
        )
    _check_author(entry, head.leader)
    match body:
        case entries.Round() if body.same_as and (ledger.round is None or ledger.round.number != body.same_as):
            known = "none" if ledger.round is None else str(ledger.round.number)
            raise RendezvousStateError(
                f"Round {body.number} is the same as round {body.same_as}, but the newest known is {known}."
            )
        case entries.Plan() | entries.Question() | entries.Answers() if not ledger.is_live:
            raise RendezvousStateError(f"Entry {entry.index} is a {entry.kind}, but no round is live that it is for.")
        case entries.StopAt() if ledger.planned_stop is None:
            raise RendezvousStateError(f"Entry {entry.index} is a STOP_AT, but no round is live that it is for.")
        case entries.Over() if ledger.halt is None:
            raise RendezvousStateError(f"Entry {entry.index} is an OVER, but no round was halted.")


def _check_author(entry: Entry, leader: str) -> None:
    """Refuse an entry of a node that is not the ``leader`` (rule S1).

    Any node may write a LEADER that makes itself the leader. Only the leader can make another node the leader.
    """
    takes = isinstance(entry.body, entries.Leader)
    if entry.author == leader and (takes or entry.leader == leader):
        return
    if takes and entry.author == entry.leader:
        return
    made = "" if entry.leader == entry.author else f", which makes {entry.leader!r} the one who decides,"
    raise RendezvousStateError(
        f"Entry {entry.index}{made} is a {entry.kind} by {entry.author!r}, but {leader!r} decides.",
        hint=STRANGER_HINT,
    )


def open_ledger(entry: Entry, now: float) -> Ledger:
    """Return the ledger of a run that begins, or is resumed, with ``entry``; RendezvousStateError for another kind."""
    at, body = Anchors(open=entry.index, leader=entry.index, kept=entry.anchors.kept), entry.body
    head = replace(entry, anchors=at)
    match body:
        case entries.Open():
            return Ledger(head=head, opened=body, opened_at=now, head_at=now)
        case entries.Resume():
            ledger = Ledger(head=head, opened=body.opened, opened_at=now, head_at=now)
            for part in body.parts:
                ledger = apply(ledger, replace(entry, body=part), now)
            # A RESUME does not say when the last resize was: its readers take it for just now, as newcomers do (L4).
            head = replace(entry, anchors=replace(ledger.head.anchors, kept=entry.index))
            return replace(ledger, head=head, last_resize=LastResize(now), resumed_from=(body.epoch, body.index))
    raise RendezvousStateError(f"Entry {entry.index} should open a run; it is a {entry.kind}.")


def restore_ledger(head: Entry, anchors: Mapping[int, Entry], now: float) -> Ledger:
    """Return the ledger of a newcomer, from the newest entry and the entries at its anchors, by index.

    Raises:
        RendezvousStateError: An anchor is missing or of another kind, or the newest entry's author is not the leader.
    """
    if not isinstance(head.body, (entries.Leader, entries.Open, entries.Resume)):
        _check_author(head, head.leader)
    at, found = head.anchors, {**anchors, head.index: head}
    places = sorted({at.open, *stands_on(head)})
    if missing := [index for index in places if index not in found]:
        raise RendezvousStateError(f"Entry {head.index} stands on {missing[0]}, which is missing.")
    ledger = open_ledger(found[at.open], now)
    for index in places:
        if index > at.open:
            ledger = apply(ledger, found[index], now)
    if replace(ledger.head.anchors, leader=at.leader, kept=at.kept) != at:
        raise RendezvousStateError(f"Entry {head.index} stands on entries {places}, which lead to another state.")
    # The time of the last resize is unknown: a newcomer that becomes the leader takes it for just now (rule L4).
    return replace(ledger, head=head, last_resize=None if ledger.round is None else LastResize(now))


def stands_on(head: Entry) -> set[int]:
    """Return the indices of the entries from which a newcomer knows the state after ``head``."""
    at = head.anchors
    return {at.open, at.round, at.latest, at.halt, at.plan, at.stop_at, at.over} - {0}


def _last_resize(ledger: Ledger, sealed: entries.Round, now: float, since_halt: float) -> LastResize | None:
    """Return the last planned resize after the ROUND ``sealed``; None before the first.

    The cost is 0 if a member or the leader was lost during the resize: the wait for a fence, a replacement or a
    successor says nothing about the next resize.
    """
    if ledger.halt is None or ledger.halt.reason is not HaltReason.RESIZE or ledger.round is None:
        return ledger.last_resize
    at = ledger.head.anchors
    kept = ledger.round.group_ranks.keys() <= sealed.group_ranks.keys() and at.leader < at.halt
    return LastResize(now, min(since_halt, now - ledger.opened_at) if kept else 0.0)


def compose(
    ledger: Ledger | None,
    body: entries.Body,
    *,
    entry_id: str,
    author: str,
    now: float,
    counters: Counters | None = None,
    leader: str | None = None,
    run: str | None = None,
    kept: int | None = None,
    store: Link | None = None,
) -> Entry:
    """Return the entry with ``body`` that ``author`` would append after ``ledger``; None stands for an empty store.

    An OPEN starts a run (named ``run``) at term 1 with fresh counters. A LEADER raises the term. All other entries go
    on from the head. A leaving leader gives ``leader``, its successor; otherwise the author is the leader. ``kept`` is
    the first entry that is no tombstone. A RESUME is built on ``store``, the newest entry of a store that has lost this
    ledger, and starts an epoch. Texts that are too long for an entry are cut (``limits``).
    """
    body = fit_body(body)
    prev = store or (ORIGIN if ledger is None else ledger.head.link)
    head = None if ledger is None or isinstance(body, entries.Open) else ledger.head
    elapsed = since_halt = 0.0
    if ledger is not None:
        elapsed = round(now - ledger.head_at, 6)
        if ledger.halt is not None and not isinstance(body, (entries.Open, entries.Halt)):
            since_halt = round(ledger.head.since_halt + elapsed, 6)
    before = Anchors() if ledger is None else ledger.head.anchors
    entry = Entry(
        index=prev.index + 1,
        id=entry_id,
        prev=prev.id,
        run=run or ("" if ledger is None else ledger.head.run),
        term=1 if head is None else head.term + isinstance(body, entries.Leader),
        author=author,
        leader=leader or author,
        elapsed=elapsed,
        since_halt=since_halt,
        counters=counters or (Counters() if head is None else head.counters),
        anchors=before if kept is None else replace(before, kept=kept),
        body=body,
        age=0.0 if head is None else round(head.age + elapsed, 6),
        epoch=0 if head is None else head.epoch + isinstance(body, entries.Resume),
    )
    return (open_ledger(entry, now) if ledger is None else apply(ledger, entry, now)).head
