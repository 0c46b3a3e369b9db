"""Which run a node belongs to: the one that was open when it first read the ledger, or else the next (rule S6).

An agent reads the ledger as soon as it has a connection, and may join seconds later, since it first imports what its
workers need. If its run ends in between, the node reports the verdict on it, and must not run the job once more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from elastic_core.protocol.codec import CODEC, Codec
from elastic_core.protocol.entries import Closed, Entry, Open, Resume
from elastic_core.protocol.graceful_stop import find_drain
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.settings import Settings
from elastic_core.rendezvous.backend import TOMBSTONE, Link, RendezvousBackend
from elastic_core.session.ledger_reader import peek


@dataclass(frozen=True, slots=True)
class FormerNode:
    """A node that has left, or is about to leave, only to enter again as another one (rule L17)."""

    node_id: str
    head: int  # the index of the newest ledger entry that it has read


Takes: TypeAlias = "Callable[[Settings, str | None], bool]"
"""Whether a run with these settings and this scheduler's uid takes the node."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a node found when it first read the ledger."""

    place: Link  # the newest entry; ``ORIGIN`` for an empty ledger
    run: str = ""  # the newest run; '' for none
    belongs: bool = False  # whether the node belongs to that run: it was open, and it takes the node
    round: int = 0  # the number of its live round, which a new member interrupts; 0 for none


def first_verdict(arrival: Arrival, since: Iterable[Entry], takes: Takes) -> Closed | None:
    """Return the verdict on the node's run among the entries ``since`` its arrival; None where there is none.

    A run that was closed as abandoned has no verdict: no node of it was alive, and this one belongs to the next.
    """
    mine = {arrival.run: arrival.belongs}
    for entry in since:
        match entry.body:
            case (Open() as opened) | Resume(opened=opened):
                mine.setdefault(entry.run, takes(opened.settings, opened.scheduler_uid))
            case Closed() as body if mine.get(entry.run) and not body.abandoned:
                return body
    return None


def verdict_since(
    store: RendezvousBackend, arrival: Arrival, ledger: Ledger, takes: Takes, codec: Codec = CODEC
) -> Closed | None:
    """Return the verdict on the node's run, which has ended since the node arrived; None where it has not.

    ``arrival`` is what the node found in the store first, and ``ledger`` what it finds there now.
    """
    if ledger.head.run == arrival.run:
        closed = ledger.closed if arrival.belongs else None
        return None if closed is None or closed.abandoned else closed
    if not _is_there(store, arrival.place, codec):  # the store has lost it: rule S3 says which run goes on
        return None
    since = (peek(store, index, codec) for index in range(arrival.place.index + 1, ledger.head.index + 1))
    return first_verdict(arrival, filter(None, since), takes)  # without tombstones


def drained_since(
    store: RendezvousBackend, former: Collection[FormerNode], ledger: Ledger, codec: Codec = CODEC
) -> str:
    """Return why one of these nodes was drained by an entry that it had not read; '' if none was."""
    if not former:
        return ""
    since = (peek(store, index, codec) for index in range(min(n.head for n in former) + 1, ledger.head.index + 1))
    return find_drain(filter(None, since), {node.node_id for node in former})


def _is_there(store: RendezvousBackend, place: Link, codec: Codec) -> bool:
    """Whether the store still has the entry, or its tombstone."""
    if not place.index:
        return True
    data = store.read(place.index)
    return data is not None and (data == TOMBSTONE or codec.decode_entry(data).link == place)
