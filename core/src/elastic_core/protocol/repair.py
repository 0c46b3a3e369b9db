"""A store that has lost history, and what a node that remembers it does (rule S3). All of it is pure.

:func:`overlap` compares the store's newest entry with what this node has read. A store that is merely *behind* gets the
exact entries back, in order; any number of nodes may do that at once. Where the histories differ, or the store is
empty, :func:`settle` weighs the two:

* A run that has had a round goes on over an empty store, over an OPEN that has no ROUND yet (so that a newcomer cannot
  bury a running job), and over what a node that knew less has put back: by one RESUME, which carries all of the state.
* What has been decided since, by others of the same run, is adopted: workers of any other round are stopped.
* Another run that has had a round of its own goes on without us: this node stops its workers, and joins it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from elastic_core.protocol.ledger import Entry, Ledger, Resume

ENTRIES_REMEMBERED = 512
"""The entries that a node keeps for a store that loses them: more than are written between two copies of a store."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The newest entries that a node has read, without a gap, oldest first; at least one."""

    entries: tuple[Entry, ...]

    def and_then(self, entries: Sequence[Entry]) -> Memory:
        """The memory after reading these; the oldest are forgotten."""
        return Memory((*self.entries, *entries)[-ENTRIES_REMEMBERED:])

    def get(self, index: int) -> Entry | None:
        """The entry of an index; None for one that is not remembered."""
        place = index - self.entries[0].index
        return self.entries[place] if 0 <= place < len(self.entries) else None


@dataclass(frozen=True, slots=True)
class Intact:
    """The store has everything that this node has read."""


@dataclass(frozen=True, slots=True)
class Passed:
    """The others have long passed what this node has read, so the store has not lost it, if what it says now
    :func:`can_follow`."""


@dataclass(frozen=True, slots=True)
class PutBack:
    """The store is behind: append these, in order."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Diverged:
    """The store holds something else, or nothing: read it, and see :func:`settle`."""


@dataclass(frozen=True, slots=True)
class WriteResume:
    """Append a RESUME on top of whatever the store holds."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """What the store says is what the run has come to."""


@dataclass(frozen=True, slots=True)
class Rejoin:
    """This node's run is not the store's any more: stop the workers, and join as a newcomer."""

    why: str


Overlap: TypeAlias = "Intact | Passed | PutBack | Diverged"
Settlement: TypeAlias = "WriteResume | Adopt | Rejoin"


def overlap(mine: Ledger, memory: Memory, head: int, at: Entry | None, *, shrunk: bool = False) -> Overlap:
    """What became of what this node has read.

    Args:
        mine: What it has read.
        memory: The newest entries of it.
        head: The index of the store's newest entry, 0 for none.
        at: The store's entry at ``head``, or at the index of ``mine``'s newest if that is smaller; None for a
            tombstone, or nothing.
        shrunk: Whether it is a tombstone.
    """
    if mine.closed is not None:
        return Intact()  # nothing of it matters to anybody any more
    if head >= mine.head.index:
        if shrunk:
            return Passed()
        return Intact() if at is not None and at.link == mine.head.link else Diverged()
    known = memory.get(head)
    if at is None or known is None or known.link != at.link:
        return Diverged()
    return PutBack(memory.entries[head + 1 - memory.entries[0].index :])


def can_follow(mine: Ledger, theirs: Ledger) -> bool:
    """Whether what the store says now can have come after all that this node has read.

    A store that forgot the newer of two histories, and has the older again, may have a tombstone in the newest's place.
    """
    if theirs.head.run == mine.head.run:
        return theirs.position >= mine.position
    return theirs.head.anchors.open > mine.head.index


def settle(mine: Ledger, memory: Memory, theirs: Ledger | None) -> Settlement:
    """What to do about a store with another history than ours, ``theirs``; None for an empty one."""
    ours = theirs is not None and theirs.head.run == mine.head.run
    if mine.round is None:  # there is nothing to lose, and nobody waits for this node
        return Adopt() if ours else Rejoin("the store has lost the run before its first round")
    if theirs is None:
        return WriteResume()
    if ours:
        return _settle_own(mine, memory, theirs)
    if theirs.round is None or theirs.closed is not None:
        return WriteResume()
    return Rejoin(f"the store was lost, and run {theirs.head.run} has begun there since")


def _settle_own(mine: Ledger, memory: Memory, theirs: Ledger) -> Settlement:
    """The same run, in two versions."""
    if _knowledge(theirs) >= _knowledge(mine):
        return Adopt()
    older = theirs.head.epoch < mine.head.epoch or theirs.head.index < memory.entries[0].index
    return WriteResume() if _is_undecided(theirs) or (older and not _has_newer_leader(mine, theirs)) else Adopt()


def _has_newer_leader(mine: Ledger, theirs: Ledger) -> bool:
    """Whether a leader that ``mine`` has not heard of has decided there, which is no copy of its past then."""
    another = theirs.head.term == mine.head.term and theirs.leader != mine.leader
    return another or theirs.head.term > mine.head.term


def _knowledge(ledger: Ledger) -> tuple[int, int]:
    """How far the run had come, as far as a ledger says; putting back what was lost adds nothing."""
    return ledger.resumed_from if _is_undecided(ledger) else ledger.position


def _is_undecided(ledger: Ledger) -> bool:
    """Whether nothing has been decided since the run was opened or resumed."""
    at = ledger.head.anchors
    return max(at.round, at.latest, at.halt, at.plan, at.stop_at) <= at.open


def compose_resume(mine: Ledger, why: str) -> Resume:
    """The body of the RESUME that says all that ``mine`` does.

    Raises:
        ValueError: It has had no round.
    """
    if mine.round is None:
        raise ValueError("a run without a round has nothing to resume")
    return Resume(
        scheduler_uid=mine.scheduler_uid,
        settings=mine.settings,
        round=replace(mine.round, same_as=0),
        halt=mine.halt,
        plan=mine.plan,
        stop_at=mine.stop_at,
        over=mine.over,
        epoch=mine.head.epoch,
        index=mine.head.index,
        why=why,
    )


def describe_loss(head: int, mine: Ledger) -> str:
    """What a store that had all of ``mine``, and has ``head`` entries now, has lost; for people."""
    if head == 0:
        return "the store came back empty"
    if head >= mine.head.index:
        return "the store came back without the run's history"
    lost = mine.head.index - head
    return f"the store has lost its last {lost} entries" if lost > 1 else "the store has lost its last entry"
