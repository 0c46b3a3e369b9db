"""Reading the ledger from a store: all of it at first (a newcomer needs six entries at most), then what is new.

And what a roster row says.
"""

from __future__ import annotations

from elastic_core.errors import RendezvousStateError
from elastic_core.protocol.codec import decode_entry, decode_row
from elastic_core.protocol.ledger import Entry, HistoryChangedError, Ledger, restore_ledger
from elastic_core.protocol.roster import NodeRow
from elastic_core.rendezvous.backend import TOMBSTONE, Cursor, RendezvousBackend, RosterRow

_PLANTED = "Something else writes to the store: use another --rdzv_id, or keep it out (docs/security.md)."


class MissingHeadError(HistoryChangedError):
    """The store has no entry where it says that its newest one is: nobody puts that back."""


def load(store: RendezvousBackend, now: float) -> Ledger | None:
    """The ledger as it stands; None for an empty store.

    Raises:
        MissingHeadError: The newest entry is missing.
        HistoryChangedError: An entry is missing, as while somebody deletes or restores them.
        RendezvousStateError: The store holds something that cannot be.
        RendezvousConnectionError: The store cannot be reached.
    """
    index = store.wait(Cursor(), roster=False, timeout=0).head
    while index:
        head = _entry(store, index)
        at = head.anchors
        anchors = {index: head}
        needed = (at.open, at.round, at.latest, at.halt, at.plan, at.stop_at, at.over)
        for anchor in needed:
            if anchor and anchor not in anchors and (entry := peek(store, anchor)) is not None:
                anchors[anchor] = entry
        gone = {*needed} - {0, *anchors}
        if not gone:
            return restore_ledger(head, anchors, now)
        newest = store.wait(Cursor(index), roster=False, timeout=0).head
        if newest == index:
            raise missing_entry(min(gone))
        index = newest  # what the head stood on was shrunk while we read
    return None


def peek(store: RendezvousBackend, index: int) -> Entry | None:
    """The entry at ``index``; None for a tombstone, and where there is none.

    Raises:
        RendezvousStateError: It cannot be.
        RendezvousConnectionError: The store cannot be reached.
    """
    data = store.read(index) if index else None
    return None if data is None or data == TOMBSTONE else _decoded(index, data)


def _decoded(index: int, data: bytes) -> Entry:
    """The entry at ``index``.

    Raises:
        RendezvousStateError: It cannot be, or is that of another place.
    """
    entry = decode_entry(data)
    if entry.index != index:
        raise RendezvousStateError(f"The store has entry {entry.index} in the place of {index}.", hint=_PLANTED)
    return entry


def news(store: RendezvousBackend, ledger: Ledger, head: int | None = None) -> tuple[Entry, ...]:
    """The entries after ``ledger.head``, in order: as far as ``head``, or to where there is none (one read more).

    Raises:
        HistoryChangedError: They are tombstones: the others have long passed them.
        RendezvousStateError: An entry cannot be.
        RendezvousConnectionError: The store cannot be reached.
    """
    found: list[Entry] = []
    index = ledger.head.index + 1
    while (head is None or index <= head) and (data := store.read(index)) is not None:
        if data == TOMBSTONE:
            raise HistoryChangedError(f"Entry {index} was shrunk before it was read.")
        try:
            found.append(_decoded(index, data))
        except RendezvousStateError:
            if store.read(index) == data:
                raise
            continue  # what woke us had brought something else along, which was only a hint
        index += 1
    return tuple(found)


def check_head(store: RendezvousBackend, ledger: Ledger) -> None:
    """Make sure that the store still has the entry that ``ledger`` ends with, or a later one.

    Raises:
        HistoryChangedError: It has another one in its place, or none.
        RendezvousStateError: That cannot be read.
        RendezvousConnectionError: The store cannot be reached.
    """
    found = peek(store, ledger.head.index)
    if found is None or found.link != ledger.head.link:
        raise HistoryChangedError(f"Entry {ledger.head.index} is not the one that was read before.")


def missing_entry(index: int) -> HistoryChangedError:
    """The store lacks an entry that it must have, and has newer ones."""
    return HistoryChangedError(
        f"Entry {index} is missing from the store.", hint="The store lost data; use another --rdzv_id."
    )


def said_by(found: RosterRow) -> NodeRow:
    """What a row says.

    Raises:
        RendezvousStateError: It cannot be, or what the store has in its place is no row.
    """
    if found.broken:
        raise RendezvousStateError(found.broken)
    return decode_row(found.value)


def _entry(store: RendezvousBackend, index: int) -> Entry:
    entry = peek(store, index)
    if entry is None:
        message = f"Entry {index} is missing from the store, which says that it is the newest."
        raise MissingHeadError(message, hint=_PLANTED)
    return entry
