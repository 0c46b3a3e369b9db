"""Reads the ledger from a store: what a newcomer needs (six entries at most), then what is new. And roster rows.

Each function raises RendezvousConnectionError where the store cannot be reached, and RendezvousStateError where the
store holds something invalid.
"""

from __future__ import annotations

from elastic_core.errors import RendezvousStateError
from elastic_core.protocol.codec import CODEC, Codec
from elastic_core.protocol.entries import Entry
from elastic_core.protocol.ledger import HistoryChangedError, Ledger, restore_ledger, stands_on
from elastic_core.protocol.roster import NodeRow
from elastic_core.rendezvous.backend import TOMBSTONE, Cursor, RendezvousBackend, RosterRow

_PLANTED = "Something else writes to the store: use another --rdzv_id, or keep it out (docs/security.md)."


class MissingHeadError(HistoryChangedError):
    """The store has no entry where it says that its newest one is: no node puts that back."""


def load(store: RendezvousBackend, now: float, codec: Codec = CODEC) -> Ledger | None:
    """Return the ledger as it stands; None for an empty store.

    Raises:
        MissingHeadError: The newest entry is missing.
        HistoryChangedError: An entry is missing, as while entries are deleted or restored.
    """
    index = store.wait(Cursor(), roster=False, timeout=0).head
    while index:
        if (head := peek(store, index, codec)) is None:
            message = f"Entry {index} is missing from the store, which says that it is the newest."
            raise MissingHeadError(message, hint=_PLANTED)
        anchors = {index: head}
        for anchor in sorted(stands_on(head) - {index}):
            if (entry := peek(store, anchor, codec)) is not None:
                anchors[anchor] = entry
        if not (gone := stands_on(head) - anchors.keys()):
            return restore_ledger(head, anchors, now)
        newest = store.wait(Cursor(index), roster=False, timeout=0).head
        if newest == index:
            raise missing_entry(min(gone))
        index = newest  # what the head stood on was shrunk while we read
    return None


def peek(store: RendezvousBackend, index: int, codec: Codec = CODEC) -> Entry | None:
    """Return the entry at ``index``; None for a tombstone, and where there is none."""
    data = store.read(index) if index else None
    return None if data is None or data == TOMBSTONE else _decode(index, data, codec)


def _decode(index: int, data: bytes, codec: Codec) -> Entry:
    """Decode the entry at ``index``, and check that it is that of its place."""
    entry = codec.decode_entry(data)
    if entry.index != index:
        raise RendezvousStateError(f"The store has entry {entry.index} in the place of {index}.", hint=_PLANTED)
    return entry


def news(store: RendezvousBackend, ledger: Ledger, head: int | None = None, codec: Codec = CODEC) -> tuple[Entry, ...]:
    """Return the entries after ``ledger.head``, in order: as far as ``head``, or to where there is none (one read
    more).

    Raises:
        HistoryChangedError: They are tombstones: all other nodes have read beyond them.
    """
    found: list[Entry] = []
    index = ledger.head.index + 1
    while (head is None or index <= head) and (data := store.read(index)) is not None:
        if data == TOMBSTONE:
            raise HistoryChangedError(f"Entry {index} was shrunk before it was read.")
        try:
            found.append(_decode(index, data, codec))
        except RendezvousStateError:
            if store.read(index) == data:
                raise
            continue  # the first value had come with a notification, which is only a hint
        index += 1
    return tuple(found)


def check_head(store: RendezvousBackend, ledger: Ledger, codec: Codec = CODEC) -> None:
    """Make sure that the store still has the entry that ``ledger`` ends with, or a later one.

    Raises:
        HistoryChangedError: It has another one in its place, or none.
    """
    found = peek(store, ledger.head.index, codec)
    if found is None or found.link != ledger.head.link:
        raise HistoryChangedError(f"Entry {ledger.head.index} is not the one that was read before.")


def missing_entry(index: int) -> HistoryChangedError:
    """Return the error for a store that lacks an entry and has newer ones."""
    return HistoryChangedError(
        f"Entry {index} is missing from the store.", hint="The store lost data; use another --rdzv_id."
    )


def said_by(found: RosterRow, codec: Codec = CODEC) -> NodeRow:
    """Decode a row.

    Raises:
        RendezvousStateError: It is invalid.
    """
    if found.broken:
        raise RendezvousStateError(found.broken)
    return codec.decode_row(found.value)
