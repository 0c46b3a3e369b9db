"""The ledger: the state of a run that follows from its entries (``entries``), in order.

An entry names the entry before it, so that every reader notices a gap or a fork. It carries enough (:class:`Anchors`,
:class:`Counters`) that a newcomer has to read only the newest entry and the few to which that points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from elastic_core.errors import RendezvousStateError
from elastic_core.protocol import entries
from elastic_core.protocol.entries import KIND_NAMES, Anchors, Counters, Entry, HaltReason
from elastic_core.protocol.limits import fit_body
from elastic_core.protocol.settings import Settings
from elastic_core.rendezvous.backend import ORIGIN, Link

B = TypeVar("B")


class HistoryChangedError(RendezvousStateError):
    """The store's history is not the one that this node has read. Other state errors mean that it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What a node knows of its run: the newest entry, and the state on which it stands.

    Instants are when this node read the entry, by its own monotonic clock.
    """

    head: Entry
    settings: Settings
    scheduler_uid: str | None
    opened_at: float
    head_at: float
    round: entries.Round | None = None  # the newest round, with its members listed even if the entry said ``same_as``
    round_at: float = 0.0
    halt: entries.Halt | None = None  # the HALT that ended :attr:`round`; None while it is live
    halt_at: float = 0.0
    plan: entries.Plan | None = None  # the PLAN for :attr:`round`, while that is live
    plan_at: float = 0.0
    stop_at: entries.StopAt | None = None  # the step at which its workers stop; None before it is known
    over: entries.Over | None = None
    """The OVER of :attr:`round`, which says that it is over and which nodes have left it; None without one."""
    asked: frozenset[str] = frozenset()  # the nodes that a DRAIN has asked to leave
    question: entries.Question | None = None  # the QUESTION of :attr:`round` that no ANSWERS has followed
    question_at: float = 0.0
    question_index: int = 0
    reports: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """The newest ANSWERS of each name in :attr:`round`, as far as this node has read them: its index and report."""
    closed: entries.Closed | None = None
    resized_at: float | None = None  # when the last planned resize was over; None before the first
    resize_cost: float = 0.0
    """Seconds from its HALT to its ROUND, by the leader's clock; 0 if a member or the leader was lost in between."""
    former: tuple[str, ...] = ()  # the runs that are known to have come before this one
    resumed_from: tuple[int, int] = (0, 0)  # the :attr:`position` of the history that the newest RESUME restored

    @property
    def is_live(self) -> bool:
        """Whether a round is under way: there is a ROUND, and neither a HALT nor CLOSED after it."""
        return self.round is not None and self.halt is None and self.closed is None

    @property
    def position(self) -> tuple[int, int]:
        """How far the run's history has come; a greater position is newer."""
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

    def age(self, now: float) -> float:
        """Seconds since the run was opened, as the entries add them up."""
        return self.head.age + max(0.0, now - self.head_at)

    def is_member(self, node_id: str) -> bool:
        """Whether ``node_id`` is a member of the newest round, live or not."""
        return self.round is not None and node_id in self.round.group_ranks


def advance(ledger: Ledger, entry: Entry, now: float) -> Ledger:
    """Return the ledger after reading the next entry.

    Raises:
        HistoryChangedError: The entry was not built on the newest one, or another run is resumed here.
        RendezvousStateError: The entry cannot follow: its term is lower, the run is closed, or its author is not the
            leader (rule S1).
    """
    head = ledger.head
    if entry.index != head.index + 1 or entry.prev != head.id:
        raise HistoryChangedError(
            f"Entry {entry.index} follows {entry.prev!r}, but entry {head.index} here is {head.id!r}.",
        )
    if isinstance(entry.body, entries.Open) and ledger.closed is None:
        raise RendezvousStateError(f"Entry {entry.index} opens a run, but run {head.run} is not over.")
    if isinstance(entry.body, entries.Resume) and entry.run != head.run:
        raise HistoryChangedError(f"Run {entry.run} goes on here; this node is in run {head.run}.")
    if isinstance(entry.body, (entries.Open, entries.Resume)):
        return open_ledger(entry, now)
    if entry.run != head.run or entry.term < head.term or ledger.closed is not None:
        raise RendezvousStateError(
            f"Entry {entry.index} (run {entry.run}, term {entry.term}) cannot follow run {head.run}, "
            f"term {head.term}" + (", which is closed." if ledger.closed else ".")
        )
    _check_author(entry, head.leader)
    after = partial(replace, ledger, head=entry, head_at=now)
    match entry.body:
        case entries.Round() as body:
            sealed = _list_members(body, ledger.round)
            at, cost = _last_resize(ledger, sealed, now, entry.since_halt)
            after = partial(after, round=sealed, round_at=now, resized_at=at, resize_cost=cost)
            return after(halt=None, plan=None, stop_at=None, over=None, question=None, reports={})
        case entries.Halt() as body:
            return after(halt=body, halt_at=now, plan=None, stop_at=None)
        case entries.Plan() as body if ledger.is_live:
            return after(plan=body, plan_at=now, stop_at=None)
        case entries.StopAt() as body if ledger.plan is not None:
            return after(stop_at=body)
        case entries.Over() as body if ledger.halt is not None:
            return after(over=body)
        case entries.Drain() as body:
            return after(asked=ledger.asked | {*body.nodes})
        case entries.Question() as body if ledger.is_live:
            return after(question=body, question_at=now, question_index=entry.index)
        case entries.Answers() as body if ledger.is_live:
            return after(question=None, reports={**ledger.reports, body.name: (entry.index, body.report)})
        case entries.Plan() | entries.StopAt() | entries.Question() | entries.Answers():
            raise RendezvousStateError(f"Entry {entry.index} is a {entry.kind}, but no round is live that it is for.")
        case entries.Over():
            raise RendezvousStateError(f"Entry {entry.index} is an OVER, but no round was halted.")
        case entries.Closed() as body:
            return after(closed=body)
    return after()


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
        hint="Something else writes to the store: docs/security.md says how to keep it out. Use another --rdzv_id.",
    )


def open_ledger(entry: Entry, now: float) -> Ledger:
    """Return the ledger of a run that begins, or is resumed, with ``entry``.

    Raises:
        RendezvousStateError: ``entry`` is neither OPEN nor RESUME.
    """
    if not isinstance(entry.body, (entries.Open, entries.Resume)):
        raise RendezvousStateError(f"Entry {entry.index} should open a run; it is a {entry.kind}.")
    body = entry.body
    settings, uid, former = body.settings, body.scheduler_uid, body.former
    ledger = Ledger(head=entry, settings=settings, scheduler_uid=uid, opened_at=now, head_at=now, former=former)
    if isinstance(body, entries.Open):
        return ledger
    known = body.epoch, body.index
    # A RESUME does not say when the last resize was: its readers take it for just now, as newcomers do (rule L4).
    ledger = replace(ledger, round=body.round, round_at=now, halt=body.halt, halt_at=now)
    ledger = replace(ledger, plan=body.plan, plan_at=now, stop_at=body.stop_at, over=body.over)
    return replace(ledger, resized_at=now, resumed_from=known)


def restore_ledger(head: Entry, anchors: Mapping[int, Entry], now: float) -> Ledger:
    """Return the ledger of a newcomer, from the newest entry and the entries at its anchors, by index.

    Raises:
        RendezvousStateError: An anchor is missing or of another kind, or the newest entry's author is not the leader.
    """
    if not isinstance(head.body, (entries.Leader, entries.Open, entries.Resume)):
        _check_author(head, head.leader)
    at = head.anchors

    def body_at(index: int, kind: type[B], part: str) -> B:
        """Return the body at an anchor. A RESUME there has what was lost as its field ``part``."""
        body = anchors[index].body if index in anchors else None
        found = getattr(body, part) if isinstance(body, entries.Resume) else body
        if isinstance(found, kind):
            return found
        raise RendezvousStateError(f"Entry {head.index} stands on {index}, which is no {KIND_NAMES[kind]}.")

    opened = open_ledger(anchors.get(at.open, head), now)
    ledger = replace(opened, head=head, halt=None, plan=None, stop_at=None, over=None)
    if at.round:
        listed = body_at(at.round, entries.Round, "round")
        newest = _with_members_of(body_at(at.latest, entries.Round, "round"), listed)
        # The time of the last resize is unknown: a newcomer that becomes the leader takes it for just now (rule L4).
        ledger = replace(ledger, round=newest, round_at=now, resized_at=now)
    if at.halt in anchors and isinstance(closed := anchors[at.halt].body, entries.Closed):
        return replace(ledger, closed=closed)
    if at.halt:
        over = body_at(at.over, entries.Over, "over") if at.over else None
        return replace(ledger, halt=body_at(at.halt, entries.Halt, "halt"), halt_at=now, over=over)
    if at.plan:
        stop_at = body_at(at.stop_at, entries.StopAt, "stop_at") if at.stop_at else None
        return replace(ledger, plan=body_at(at.plan, entries.Plan, "plan"), plan_at=now, stop_at=stop_at)
    return ledger


def ledger_read_at(ledger: Ledger, now: float) -> Ledger:
    """Return the ledger of a newcomer that finished reading at ``now``: entries may have been written until then."""
    return replace(ledger, head_at=now, halt_at=now)


def _last_resize(ledger: Ledger, sealed: entries.Round, now: float, since_halt: float) -> tuple[float | None, float]:
    """Return when the last planned resize was over and what it cost, after the ROUND ``sealed``.

    The cost is 0 if a member or the leader was lost during the resize: the wait for a fence, a replacement or a
    successor says nothing about the next resize.
    """
    if ledger.halt is None or ledger.halt.reason is not HaltReason.RESIZE or ledger.round is None:
        return ledger.resized_at, ledger.resize_cost
    at = ledger.head.anchors
    kept = ledger.round.group_ranks.keys() <= sealed.group_ranks.keys() and at.leader < at.halt
    return now, min(since_halt, now - ledger.opened_at) if kept else 0.0


def _list_members(body: entries.Round, previous: entries.Round | None) -> entries.Round:
    if not body.same_as:
        return body
    if previous is None or previous.number != body.same_as:
        known = "none" if previous is None else str(previous.number)
        raise RendezvousStateError(
            f"Round {body.number} is the same as round {body.same_as}, but the newest known is {known}."
        )
    return _with_members_of(body, previous)


def _with_members_of(body: entries.Round, listed: entries.Round) -> entries.Round:
    """Return a ROUND with the members and hosts that another one lists."""
    return replace(body, members=listed.members, hosts=listed.hosts)


def next_anchors(ledger: Ledger | None, body: entries.Body, index: int) -> Anchors:
    """Return the anchors of an entry with ``body`` at ``index`` that follows ``ledger``."""
    before = Anchors() if ledger is None else ledger.head.anchors
    match body:
        case entries.Open():
            return Anchors(open=index, leader=index, kept=before.kept)
        case entries.Resume():
            carried = {part: index for part in ("halt", "plan", "stop_at", "over") if getattr(body, part) is not None}
            return Anchors(open=index, leader=index, round=index, latest=index, kept=index, **carried)
        case entries.Leader():
            return replace(before, leader=index)
        case entries.Round():
            round_at = before.round if body.same_as else index
            return replace(before, latest=index, round=round_at, halt=0, plan=0, stop_at=0, over=0)
        case entries.Plan():
            return replace(before, plan=index, stop_at=0)
        case entries.StopAt():
            return replace(before, stop_at=index)
        case entries.Over():
            return replace(before, over=index)
        case entries.Drain() | entries.Question() | entries.Answers():
            return before
        case _:
            return replace(before, halt=index, plan=0, stop_at=0)


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
    index = prev.index + 1
    anchors = next_anchors(ledger, body, index)
    head = None if ledger is None or isinstance(body, entries.Open) else ledger.head
    elapsed = since_halt = 0.0
    if ledger is not None:
        elapsed = round(now - ledger.head_at, 6)
        if ledger.halt is not None and not isinstance(body, (entries.Open, entries.Halt)):
            since_halt = round(ledger.head.since_halt + elapsed, 6)
    return Entry(
        index=index,
        id=entry_id,
        prev=prev.id,
        run=run or ("" if ledger is None else ledger.head.run),
        term=1 if head is None else head.term + isinstance(body, entries.Leader),
        author=author,
        leader=leader or author,
        elapsed=elapsed,
        since_halt=since_halt,
        counters=counters or (Counters() if head is None else head.counters),
        anchors=anchors if kept is None else replace(anchors, kept=kept),
        body=body,
        age=0.0 if head is None else round(head.age + elapsed, 6),
        epoch=0 if head is None else head.epoch + isinstance(body, entries.Resume),
    )
