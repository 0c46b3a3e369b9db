"""Reads a store: the entries that a newcomer needs (six at most), then new entries, and the rows of the roster.

Each function raises RendezvousConnectionError where the store cannot be reached, and RendezvousStateError where the
store holds something invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace

from elastic_core.errors import RendezvousStateError
from elastic_core.events import Event, Level
from elastic_core.protocol.codec import CODEC, Codec
from elastic_core.protocol.entries import Entry
from elastic_core.protocol.failure_detector import PROOF_HEARTBEATS, Observation
from elastic_core.protocol.ledger import HistoryChangedError, Ledger, restore_ledger, stands_on
from elastic_core.protocol.limits import MAX_UNREAD_ROWS, UNREAD_ID_LENGTH
from elastic_core.protocol.roster import NodeInfo, NodeRow, Phase, find_gone_nodes
from elastic_core.rendezvous.backend import STRANGER_HINT, TOMBSTONE, Cursor, RendezvousBackend, RosterRow
from elastic_core.session.runtime import Runtime


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
            raise MissingHeadError(message, hint=STRANGER_HINT)
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


def load_now(store: RendezvousBackend, runtime: Runtime) -> Ledger | None:
    """Return what :func:`load` does, for a node that will follow the ledger: entries may be as new as the reading."""
    ledger, now = load(store, runtime.now(), runtime.codec), runtime.now()
    return None if ledger is None else replace(ledger, head_at=now, halt_at=now)


def peek(store: RendezvousBackend, index: int, codec: Codec = CODEC) -> Entry | None:
    """Return the entry at ``index``; None for a tombstone, and where there is none."""
    data = store.read(index) if index else None
    return None if data is None or data == TOMBSTONE else _decode(index, data, codec)


def _decode(index: int, data: bytes, codec: Codec) -> Entry:
    """Decode the entry at ``index``, and check that it is that of its place."""
    entry = codec.decode_entry(data)
    if entry.index != index:
        raise RendezvousStateError(f"The store has entry {entry.index} in the place of {index}.", hint=STRANGER_HINT)
    return entry


def news(store: RendezvousBackend, ledger: Ledger, head: int | None = None, codec: Codec = CODEC) -> tuple[Entry, ...]:
    """Return the entries after ``ledger.head``, in order: up to ``head``, or to where there is none (one read more).

    Raise HistoryChangedError for tombstones: all other nodes have read beyond them.
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
    """Raise HistoryChangedError if the store has not the entry that ``ledger`` ends with."""
    found = peek(store, ledger.head.index, codec)
    if found is None or found.link != ledger.head.link:
        raise HistoryChangedError(f"Entry {ledger.head.index} is not the one that was read before.")


def missing_entry(index: int) -> HistoryChangedError:
    """Return the error for a store that lacks an entry and has newer ones."""
    return HistoryChangedError(
        f"Entry {index} is missing from the store.", hint="The store lost data; use another --rdzv_id."
    )


# The roster ----------------------------------------------------------------------------------------------------------


def decode_roster_row(found: RosterRow, codec: Codec = CODEC) -> NodeRow:
    """Decode a row; raise RendezvousStateError if it is invalid."""
    if found.broken:
        raise RendezvousStateError(found.broken)
    return codec.decode_row(found.value)


def readable(found: Iterable[RosterRow], codec: Codec = CODEC) -> list[Observation]:
    """Return the rows among these that can be decoded and are of the node that their key names.

    The leader reports the others.
    """
    rows = []
    for seen in found:
        with suppress(RendezvousStateError):
            row = decode_roster_row(seen, codec)
            if row.info.node_id == seen.node_id:
                rows.append(Observation(row, seen.serial, seen.heartbeat, seen.revision))
    return rows


class RosterReader:
    """Reads the whole roster again and again: of a thousand rows mostly one has changed since the last read.

    It publishes one warning for each row that cannot be read.
    """

    def __init__(self, codec: Codec, publish: Callable[[Event], None]) -> None:
        self._codec, self._publish = codec, publish
        self.unread: tuple[str, ...] = ()  # the ids of the rows that could not be read, at most MAX_UNREAD_ROWS
        self._decoded: dict[str, tuple[bytes, NodeRow]] = {}
        self._reported = set[str]()

    def read(self, store: RendezvousBackend, epoch: int) -> list[Observation]:
        """Return the rows, without what they say of other epochs."""
        found, decoded, unread = [], {}, []
        for seen in store.roster():
            value, row = self._decoded.get(seen.node_id, (None, None))
            if row is None or value != seen.value:
                try:
                    row = decode_roster_row(seen, self._codec)
                except RendezvousStateError as exc:
                    self._report(seen.node_id, exc)
                    unread.append(seen.node_id)
                    continue
            if row.info.node_id == seen.node_id:
                decoded[seen.node_id] = (seen.value, row)
                found.append(Observation(row.within(epoch), seen.serial, seen.heartbeat, seen.revision))
        named = sorted(node_id for node_id in unread if len(node_id) <= UNREAD_ID_LENGTH)
        self._decoded, self.unread = decoded, tuple(named[:MAX_UNREAD_ROWS])
        return found

    def _report(self, node_id: str, exc: RendezvousStateError) -> None:
        if node_id not in self._reported:
            self._reported.add(node_id)
            message = f"A row in the store is ignored: {exc}"
            self._publish(Event("row_ignored", message, Level.WARNING, {"row": node_id}))


def living_hosts(
    store: RendezvousBackend,
    ledger: Ledger,
    me: NodeInfo,
    runtime: Runtime,
    *,
    but: Collection[str] = (),
    node_rank: int | None = None,
) -> list[str]:
    """Return the hosts of a run whose heartbeats move, watched for ``lost_after``; at once where there are none.

    This is for a node outside of the run; its leader learns it from ``protocol.failure_detector``. Nodes whose slots
    show that they are gone are watched for less (rule S8). Nodes in ``but`` do not count, nor those without
    ``node_rank``, if it is given.
    """
    timing = ledger.settings.timing
    runs = {ledger.head.run} if ledger.closed is not None else {ledger.head.run, ""}  # '': about to join, perhaps
    first: dict[str, tuple[int, int]] = {}
    moving = set[str]()
    began = runtime.now()
    deadline, proved_at = began + timing.lost_after, began + PROOF_HEARTBEATS * timing.beat_interval
    while True:
        here, alive, now = set(), dict[str, str](), runtime.now()
        for seen in readable(store.roster(), runtime.codec):
            row, node_id, state = seen.row, seen.row.info.node_id, (seen.revision, seen.heartbeat)
            if first.setdefault(node_id, state) != state:
                moving.add(node_id)
            gone = now >= proved_at and node_id not in moving and node_id in find_gone_nodes((row, NodeRow(info=me)))
            left = row.leaving and row.phase is not Phase.RUNNING
            other_rank = node_rank is not None and row.info.node_rank != node_rank
            if row.run in runs and node_id not in but and not (gone or left or other_rank):
                here.add(node_id)
                if row.run and node_id in moving:  # a node that is being checked is in no run (rule L17)
                    alive[node_id] = str(row.info)
        if runtime.now() >= deadline or here == alive.keys():
            return sorted(alive.values())
        until_proved = proved_at - runtime.now()
        runtime.sleep(until_proved if 0 < until_proved < timing.beat_interval else timing.beat_interval)
