"""Putting back what a store has lost: the driver of ``history`` (rule S3). One call is one look, on one connection."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous.backend import ORIGIN, TOMBSTONE, Cursor, Link, RendezvousBackend
from elastic_core.rendezvous.codec import encode_entry
from elastic_core.rendezvous.history import (
    Adopt,
    Intact,
    Memory,
    Passed,
    PutBack,
    Rejoin,
    follows,
    missing,
    overlap,
    resume,
    settle,
)
from elastic_core.rendezvous.join import Clock
from elastic_core.rendezvous.ledger import Entry, HistoryChangedError, Ledger, advance, compose, opened
from elastic_core.rendezvous.reading import check_head, load, news, peek

ATTEMPTS = 8
"""Times to look again after others have written meanwhile; then the next beat tries again."""
AFTER_US = "another run has begun since this node was here"
"""Why a node that was away joins anew."""


Restored: TypeAlias = "tuple[str, Ledger | None] | Rejoin | None"


def restore(
    store: RendezvousBackend,
    mine: Ledger,
    memory: Memory,
    node_id: str,
    clock: Clock,
    *,
    unread: HistoryChangedError | None = None,
) -> Restored:
    """Make the store's history and this node's one again.

    Args:
        store: A connection.
        mine: What this node has read.
        memory: The newest entries of it.
        node_id: This node.
        clock: Its clock.
        unread: Why it could not read on, if it could not.

    Returns:
        None where they are one already, or things change too fast to tell. Else what was lost, for people, and the
        ledger to go on from (None: the one that this node has); or that it cannot go on.

    Raises:
        HistoryChangedError: The store has lost what its newest entry stands on, or loses entries at this very moment.
        RendezvousStateError: The store holds what cannot be read.
        RendezvousConnectionError: It cannot be reached; what was being written may or may not have landed.
    """
    lost = gone = None
    for _ in range(ATTEMPTS):
        head = store.wait(Cursor(), roster=False, timeout=0).head
        at = peek(store, index := min(head, mine.head.index))
        shrunk = at is None and index > 0 and store.read(index) == TOMBSTONE
        match overlap(mine, memory, head, at, shrunk=shrunk):
            case Passed() if (found := _newest(store, mine, clock, AFTER_US)) is not None:
                return found
            case Intact():
                leap = None if unread is None else _leap(store, mine, unread, clock)
                return (lost, None) if leap is None and lost is not None else leap
            case PutBack(entries) if at is not None:
                lost = lost or missing(head, mine)
                _put_back(store, at.link, entries)
                continue
        try:
            theirs = load(store, clock.now())
        except HistoryChangedError as exc:
            gone = exc
            continue  # somebody deletes or restores entries at this very moment
        match settle(mine, memory, theirs):
            case Rejoin() as rejoin:
                return rejoin
            case Adopt():
                return lost or "the store had lost entries, or this node was away", theirs
        lost = lost or missing(head, mine)
        prev = ORIGIN if theirs is None else theirs.head.link
        body, now = resume(mine, lost), clock.now()
        entry = compose(mine, body, entry_id=clock.new_id(), author=node_id, chair=mine.chair, now=now, store=prev)
        if store.append(prev, entry.link, encode_entry(entry)):
            return lost, opened(entry, now)
    if gone is not None:
        raise gone
    return None


def _leap(store: RendezvousBackend, mine: Ledger, unread: HistoryChangedError, clock: Clock) -> Restored:
    """From what this node has read to the newest, over entries that are no more, or to another run that goes on here.

    Raises:
        HistoryChangedError: The store has lost entries at this very moment.
        RendezvousStateError: The chain is broken, which no store that lost entries has brought about.
    """
    found = _newest(store, mine, clock, unread.message)
    if found is None or isinstance(found, Rejoin):
        return found
    newest = found[1].head.index
    try:
        between = news(store, mine, newest)
    except HistoryChangedError:
        return found  # over tombstones; entries before them may be whole, in a store that has lost shrinks
    if len(between) < newest - mine.head.index:
        return found  # over entries that were deleted by hand
    if any(
        (entry.prev, entry.index) != (before.id, before.index + 1) for before, entry in pairwise((mine.head, *between))
    ):
        check_head(store, mine)
        raise RendezvousStateError(unread.message, hint="Something else writes to the store; use another --rdzv_id.")
    ledger = mine
    for entry in between:
        try:
            ledger = advance(ledger, entry, clock.now())
        except HistoryChangedError:
            return found  # over another run, which was outranked
        if ledger.closed is not None:
            break
    return None  # others have put back meanwhile what could not be read


def _newest(store: RendezvousBackend, mine: Ledger, clock: Clock, why: str) -> tuple[str, Ledger] | Rejoin | None:
    """What the store says now, or that another run goes on there; None if that is older than what this node has read.

    Raises:
        HistoryChangedError: The store has lost entries at this very moment.
    """
    theirs = load(store, clock.now())
    if theirs is None:
        raise HistoryChangedError("The store was emptied while it was read.")
    if not follows(mine, theirs):
        return None
    return Rejoin(why) if theirs.head.run != mine.head.run else ("this node was away for long", theirs)


def _put_back(store: RendezvousBackend, prev: Link, entries: tuple[Entry, ...]) -> None:
    """Append the entries, until somebody else writes something there: the same, or not."""
    for entry in entries:
        if not store.append(prev, entry.link, encode_entry(entry)):
            return
        prev = entry.link
