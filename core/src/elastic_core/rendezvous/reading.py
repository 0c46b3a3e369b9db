"""Reading the ledger from a store: all of it at first (a newcomer needs four entries at most), then what is new."""

from __future__ import annotations

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous.backend import Cursor, RendezvousBackend
from elastic_core.rendezvous.codec import decode_entry
from elastic_core.rendezvous.ledger import Entry, Ledger, restored


def load(store: RendezvousBackend, now: float) -> Ledger | None:
    """The ledger as it stands; None for an empty store.

    Raises:
        RendezvousStateError: The store holds something that cannot be.
        RendezvousConnectionError: The store cannot be reached.
    """
    index = store.wait(Cursor(), roster=False, timeout=0).head
    if index == 0:
        return None
    head = _entry(store, index)
    anchors = {head.index: head}
    at = head.anchors
    for anchor in (at.open, at.round, at.latest, at.halt):
        if anchor and anchor not in anchors:
            anchors[anchor] = _entry(store, anchor)
    return restored(head, anchors, now)


def has_round(store: RendezvousBackend, now: float) -> bool:
    """Whether a job is running, so that a newcomer would interrupt it.

    Raises:
        RendezvousStateError: The store holds something that cannot be.
        RendezvousConnectionError: The store cannot be reached.
    """
    ledger = load(store, now)
    return ledger is not None and ledger.live and ledger.round is not None


def news(store: RendezvousBackend, ledger: Ledger) -> tuple[Entry, ...]:
    """The entries after ``ledger.head``, in order; one read more than there are entries.

    Raises:
        RendezvousStateError: An entry cannot be.
        RendezvousConnectionError: The store cannot be reached.
    """
    found: list[Entry] = []
    while (data := store.read(ledger.head.index + len(found) + 1)) is not None:
        found.append(decode_entry(data))
    return tuple(found)


def check_head(store: RendezvousBackend, ledger: Ledger) -> None:
    """Make sure that the store still has the entry that ``ledger`` ends with, or a later one.

    Raises:
        RendezvousStateError: It has another one in its place, or none.
        RendezvousConnectionError: The store cannot be reached.
    """
    if _entry(store, ledger.head.index).link != ledger.head.link:
        raise RendezvousStateError(
            f"Ledger entry {ledger.head.index} is not the one that was read before: the store's history has changed.",
            hint="Something restored an older state of the store, or wrote to it; use another --rdzv_id.",
        )


def _entry(store: RendezvousBackend, index: int) -> Entry:
    data = store.read(index)
    if data is None:
        raise RendezvousStateError(
            f"Ledger entry {index} is missing from the store.", hint="The store lost data; use another --rdzv_id."
        )
    return decode_entry(data)
