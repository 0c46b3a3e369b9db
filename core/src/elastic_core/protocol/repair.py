"""Repair of a store that has lost history, by a node that remembers it (rule S3 in ``docs/internals/protocol.md``).

:func:`overlap` compares the store's newest entry with what this node has read. If the store is only *behind*, the node
puts back exactly the same entries, in order; any number of nodes may do so at once. If the histories differ, or the
store is empty, :func:`settle` decides.

:func:`entries_to_shrink` says which entries no node needs any more, not even for a repair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TypeAlias

from elastic_core.protocol.entries import Counters, Entry, Resume
from elastic_core.protocol.failure_detector import Watch
from elastic_core.protocol.ledger import Ledger

ENTRIES_KEPT_WHOLE = 64  # the newest entries are kept whole: to find out what went wrong in a run, one needs its end
ENTRIES_SHRUNK_AT_ONCE = 16
"""Most entries that one turn of the leader shrinks: a long history must not delay a decision."""
ENTRIES_REMEMBERED = 512
"""The number of entries that a node keeps to repair a store: more than are written between two copies of a store."""


Memory: TypeAlias = tuple[Entry, ...]
"""The newest entries that a node has read: at least one, without a gap, oldest first."""


def remember(memory: Memory, entries: Sequence[Entry]) -> Memory:
    """Return the memory after reading these entries; the oldest are dropped."""
    return (*memory, *entries)[-ENTRIES_REMEMBERED:]


class Overlap(Enum):
    """The state, in the store, of the entries that a node has read."""

    INTACT = auto()  # the store has them all
    PASSED = auto()  # all other nodes have read further: the newest one shrank and is not lost, if can_follow holds too
    BEHIND = auto()  # the store lacks the newest of them: append these, in order
    DIVERGED = auto()  # the store holds something else, or nothing: read it, and let settle decide


class Settlement(Enum):
    """The answer to a store with another history, if it is not a :class:`Rejoin`."""

    RESUME = auto()  # append a RESUME on top of whatever the store holds
    ADOPT = auto()  # adopt the history in the store


@dataclass(frozen=True, slots=True)
class Rejoin:
    """The run in the store is not this node's run any more: stop the workers, and join as a newcomer."""

    why: str
    if_alive: bool = False
    """True if this holds only while a node of the run in the store is alive; otherwise a RESUME follows. That run may
    have begun after the store was lost, or have ended before this run and have come back with an old copy."""


def overlap(mine: Ledger, memory: Memory, head: int, at: Entry | None, *, shrunk: bool = False) -> Overlap:
    """Return what became, in the store, of the entries that this node has read.

    ``head`` is the index of the store's newest entry; 0 for none. ``at`` is its entry at the smaller of ``head`` and
    the index of ``mine``'s newest entry; None for nothing, and for a tombstone, which it is if ``shrunk``.
    """
    if mine.closed is not None:
        return Overlap.INTACT  # a closed run needs no repair
    if head >= mine.head.index:
        if shrunk:
            return Overlap.PASSED
        return Overlap.INTACT if at is not None and at.link == mine.head.link else Overlap.DIVERGED
    is_known = at is not None and any(entry.link == at.link for entry in memory)
    return Overlap.BEHIND if is_known else Overlap.DIVERGED


def can_follow(mine: Ledger, theirs: Ledger) -> bool:
    """Return True if the history in the store can have come after all entries that this node has read.

    A store that lost the newer of two histories and shows the older one again, or the run before, may have a tombstone
    at the same index.
    """
    if theirs.head.run == mine.head.run:
        return theirs.position >= mine.position
    return theirs.head.run not in mine.opened.former and theirs.head.anchors.open > mine.head.index


def settle(mine: Ledger, memory: Memory, theirs: Ledger | None) -> Settlement | Rejoin:
    """Return what to do about a store with another history, ``theirs``; None for an empty store.

    A run that has had a round is resumed over an empty store, over an OPEN without a ROUND (so that a newcomer cannot
    replace a running job), over a RESUME by a node that knew less, over a run that came before it, and over one of
    which no node is alive. Later decisions of the same run are adopted.
    """
    ours = theirs is not None and theirs.head.run == mine.head.run
    if mine.round is None:  # there is nothing to lose
        return Settlement.ADOPT if ours else Rejoin("the store has lost the run before its first round")
    if theirs is None:
        return Settlement.RESUME
    if ours:
        return _settle_own(mine, memory, theirs)
    if theirs.round is None or theirs.closed is not None or theirs.head.run in mine.opened.former:
        return Settlement.RESUME
    why = f"the store was lost, and run {theirs.head.run} has begun there since"
    return Rejoin(why, if_alive=mine.head.run not in theirs.opened.former)


def _settle_own(mine: Ledger, memory: Memory, theirs: Ledger) -> Settlement:
    """Decide between two histories of the same run."""
    if _knowledge(theirs) >= _knowledge(mine):
        return Settlement.ADOPT
    older = theirs.head.epoch < mine.head.epoch or theirs.head.index < memory[0].index
    outranked = _is_undecided(theirs) or (older and not _has_newer_leader(mine, theirs))
    return Settlement.RESUME if outranked else Settlement.ADOPT


def _has_newer_leader(mine: Ledger, theirs: Ledger) -> bool:
    """Return True if a leader unknown to ``mine`` has decided there, so that ``theirs`` is no copy of the past."""
    another = theirs.head.term == mine.head.term and theirs.leader != mine.leader
    return another or theirs.head.term > mine.head.term


def _knowledge(ledger: Ledger) -> tuple[int, int]:
    """Return how far a ledger knows the run to have come; a RESUME alone adds nothing to that."""
    return ledger.resumed_from if _is_undecided(ledger) else ledger.position


def _is_undecided(ledger: Ledger) -> bool:
    """Return True if no decision has followed since the run was opened or resumed."""
    at = ledger.head.anchors
    return max(at.round, at.latest, at.halt, at.plan, at.stop_at) <= at.open


def compose_resume(mine: Ledger, why: str) -> Resume:
    """Return the body of the RESUME that carries the state of ``mine``; ValueError if that has had no round."""
    if mine.round is None:
        raise ValueError("a run without a round has nothing to resume")
    stop = mine.planned_stop
    return Resume(
        opened=mine.opened,
        round=replace(mine.round, same_as=0),
        halt=mine.halt,
        plan=None if stop is None else stop.plan,
        stop_at=None if stop is None else stop.stop_at,
        over=mine.over,
        epoch=mine.head.epoch,
        index=mine.head.index,
        why=why,
    )


def lighten(resume: Resume, counters: Counters) -> Iterator[tuple[Resume, Counters]]:
    """Yield a RESUME and its counters whole, then with ever fewer parts, for one that is too large for a value (L8).

    The parts that the run can best do without go first: what only messages show, then the policies' memory. Restarts
    and rounds without progress stay counted, and the members and the proof that a round is over (S4) stay as well.
    """
    yield resume, counters
    halt, why = resume.halt, f"{resume.why}; one entry is too small for all of the run's state, so it goes on without"
    if halt is not None and halt.incident is not None:
        halt = replace(halt, incident=replace(halt.incident, detail=""))
    shown = replace(resume, halt=halt, round=replace(resume.round, hosts=()))
    names = "the traceback of the last failure and the names of the members' hosts"
    yield replace(shown, why=f"{why} {names}"), counters
    bare = Counters(restarts=counters.restarts, barren=counters.barren, worst_seen=counters.worst_seen)
    yield replace(shown, why=f"{why} {names}, and without the past failures, lost hosts and excluded hosts"), bare


def describe_loss(head: int, mine: Ledger) -> str:
    """Describe what a store has lost that had all of ``mine`` and has ``head`` entries now."""
    if head == 0:
        return "the store came back empty"
    if head >= mine.head.index:
        return "the store came back without the run's history"
    lost = mine.head.index - head
    return f"the store has lost its last {lost} entries" if lost > 1 else "the store has lost its last entry"


def entries_to_shrink(ledger: Ledger, watch: Watch, kept: int, whole: int = ENTRIES_KEPT_WHOLE) -> range:
    """Return the entries to shrink next: every node in the roster has read them, and no newer entry stands on them.

    All entries before ``kept`` are tombstones, except those on which the head stands. The newest ``whole`` entries
    stay. A node that has just arrived has read nothing yet.
    """
    at = ledger.head.anchors
    first = max(kept, at.open + 1)
    needed = [index for index in (at.round, at.latest, at.halt, at.plan) if index]
    passed = [node.row.head for node in watch.nodes.values()]
    end = min([ledger.head.index - whole + 1, *needed, *passed])
    return range(first, min(end, first + ENTRIES_SHRUNK_AT_ONCE))
