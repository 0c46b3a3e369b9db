"""Puts back what a store has lost: the driver of ``protocol.repair`` (rule S3). One call is one look."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeAlias

from elastic_core.errors import RendezvousStateError
from elastic_core.protocol import repair
from elastic_core.protocol.codec import Codec, OversizedError
from elastic_core.protocol.entries import Entry
from elastic_core.protocol.ledger import HistoryChangedError, Ledger, advance, compose, open_ledger
from elastic_core.protocol.roster import NodeInfo
from elastic_core.rendezvous.backend import ORIGIN, TOMBSTONE, Cursor, Link, RendezvousBackend
from elastic_core.session.ledger_reader import check_head, living_hosts, load_now, news, peek
from elastic_core.session.runtime import Runtime

REPAIR_ATTEMPTS_MAX = 8
"""The number of reads after other nodes have written meanwhile; then the next heartbeat tries again."""
AWAY = "this node was away for long"  # why a node goes on from another entry than the next

Restored: TypeAlias = "tuple[str, Ledger | None] | repair.Rejoin | None"


def restore(
    store: RendezvousBackend,
    mine: Ledger,
    memory: repair.Memory,
    me: NodeInfo,
    runtime: Runtime,
    *,
    unread: HistoryChangedError | None = None,
) -> Restored:
    """Make the store's history and this node's one again.

    ``mine`` is what the node ``me`` has read, ``memory`` the newest entries of that, ``unread`` why it could not read
    on. It takes ``lost_after`` longer where the store has another run, of which this node cannot tell whether it came
    before its own.

    Returns:
        None where they are one already, or change too fast to tell. Else what was lost, for people, and the ledger to
        go on from (None: the one that this node has); or a Rejoin where it cannot go on.

    Raises:
        HistoryChangedError: The store has lost what its newest entry stands on, or loses entries at this very moment.
        OversizedError: The run's state is too large for one entry, whatever is left out.
    """
    lost, gone, codec = None, None, runtime.codec
    for _ in range(REPAIR_ATTEMPTS_MAX):
        head = store.wait(Cursor(), roster=False, timeout=0).head
        at = peek(store, index := min(head, mine.head.index), codec)
        shrunk = at is None and index > 0 and store.read(index) == TOMBSTONE
        match what := repair.overlap(mine, memory, head, at, shrunk=shrunk):
            case repair.Overlap.INTACT if unread is None or mine.closed is not None:
                return None if lost is None else (lost, None)
            case repair.Overlap.BEHIND if at is not None:
                lost = lost or repair.describe_loss(head, mine)
                _put_back(store, at.link, memory.after(head), codec)
                continue
        try:
            theirs = load_now(store, runtime)
        except HistoryChangedError as exc:
            gone = exc
            continue  # entries are deleted or restored at this very moment
        passed = what is repair.Overlap.PASSED
        if (passed or what is repair.Overlap.INTACT) and theirs is not None and repair.can_follow(mine, theirs):
            found = _onward(store, mine, theirs, None if passed else unread, codec)
            return (lost, None) if found is None and lost is not None else found
        match repair.settle(mine, memory, theirs):
            case repair.Rejoin(why, if_alive) if not if_alive or (theirs and living_hosts(store, theirs, me, runtime)):
                return repair.Rejoin(why)
            case repair.Settlement.ADOPT:
                return lost or "the store had lost entries, or this node was away", theirs
        lost = lost or repair.describe_loss(head, mine)
        prev = ORIGIN if theirs is None else theirs.head.link
        if (resumed := _resume(store, mine, lost, me.node_id, prev, runtime)) is not None:
            return resumed
    if gone is not None:
        raise gone
    return None


def _resume(
    store: RendezvousBackend, mine: Ledger, lost: str, node_id: str, prev: Link, runtime: Runtime
) -> tuple[str, Ledger] | None:
    """Append the RESUME of ``mine`` after ``prev``, with as many parts as fit into a value (rule L8).

    Return what was lost, and the ledger; None if another node was faster.
    """
    now, new_id = runtime.now(), runtime.new_id()
    for body, counters in repair.lighten(repair.compose_resume(mine, lost), mine.counters):
        entry = compose(
            mine, body, entry_id=new_id, author=node_id, now=now, counters=counters, leader=mine.leader, store=prev
        )
        with suppress(OversizedError):
            appended = store.append(prev, entry.link, runtime.codec.encode_entry(entry))
            return (body.why, open_ledger(entry, now)) if appended else None
    raise OversizedError(
        f"The state of run {mine.head.run} is too large for one value of the store, whatever is left out.",
        hint="Give the nodes of the job fewer --role names, or shorter ones.",
    )


def _onward(
    store: RendezvousBackend, mine: Ledger, theirs: Ledger, unread: HistoryChangedError | None, codec: Codec
) -> Restored:
    """Go on from what this node has read to the store's newest entry; ``unread`` is why it cannot just read on.

    Raises:
        HistoryChangedError: The store has lost entries at this very moment.
        RendezvousStateError: The chain is broken, which no store that lost entries has brought about.
    """
    if theirs.head.run != mine.head.run:
        return repair.Rejoin("another run has begun since this node was here" if unread is None else unread.message)
    if unread is None:
        return AWAY, theirs
    try:
        between = news(store, mine, theirs.head.index, codec)
    except HistoryChangedError:
        return AWAY, theirs  # over tombstones; entries before them may be whole, in a store that has lost shrinks
    if len(between) < theirs.head.index - mine.head.index:
        return "the store has lost entries that this node has not read", theirs
    ledger = mine
    for entry in between:
        if (entry.prev, entry.index) != (ledger.head.id, ledger.head.index + 1):
            check_head(store, mine, codec)
            hint = "Something else writes to the store; use another --rdzv_id."
            raise RendezvousStateError(unread.message, hint=hint)
        try:
            ledger = advance(ledger, entry, theirs.head_at)
        except HistoryChangedError:
            return "another run has been there meanwhile", theirs
        if ledger.closed is not None:
            break
    return None  # other nodes have put back meanwhile what could not be read


def _put_back(store: RendezvousBackend, prev: Link, entries: tuple[Entry, ...], codec: Codec) -> None:
    """Append the entries, until another node appends there: the same entries, or others."""
    for entry in entries:
        if not store.append(prev, entry.link, codec.encode_entry(entry)):
            return
        prev = entry.link
