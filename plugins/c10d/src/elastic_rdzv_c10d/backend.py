"""Roster and ledger on a TCPStore. The keys are listed in ``records``.

* **The ledger** is keys that are created once (compare-and-set on a missing key). There is no counter that could be
  wrong after a crash: the head is where the ledger ends, found by one question. Who has just come is given the newest
  entry as its writer left it for that, and where there is none finds the head by doubling and halving. Who waits for
  an entry is given it.
* **A row** is changed by compare-and-set on the whole of it: an older revision never wins, a removed row stays removed.
* **A change** is counted after it has been made, and its bell is rung last. A waiter reads the counter before it looks
  around, and then waits for the next bell. Each writer rings the bell before its own too, since its owner may have
  been killed between the count and the bell.

An embedded store never rolls back, so what was read once is remembered: the head, the last entry, which rows are gone.
An agent's connections tell each other where its own row is and what they wrote there, so that it is not looked up.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError, StoreLostError
from elastic_core.rendezvous import (
    ORIGIN,
    TOMBSTONE,
    Cursor,
    Entry,
    HeartbeatReply,
    Link,
    RendezvousBackend,
    RosterRow,
    Row,
    WorkersStore,
    check_size,
)
from elastic_rdzv_c10d.client import StoreClient
from elastic_rdzv_c10d.records import (
    BELL_PATIENCE,
    ENTRY_APPENDED,
    KEPT_BELLS,
    READER,
    REMOVED,
    ROOT,
    ROW_CHANGED,
    ROW_CYCLE,
    UNWRITTEN,
    Keys,
    split_changes,
)
from elastic_rdzv_c10d.server import StoreServer

FEW = 8  # fewer rows than this are read one by one, instead of all that there are


@dataclass(slots=True)
class Known:
    """The shared knowledge of an agent's connections about its job. Each is used by a thread of its own."""

    head: int = 0  # an entry that is there; perhaps not the newest that any of them has seen
    serials: dict[str, int] = field(default_factory=dict)  # where rows were last seen
    written: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Rows as they were last written by this agent, with their serials; mostly they still are so."""


class C10dBackend(RendezvousBackend, WorkersStore):
    """One connection to one job's keys."""

    embedded = True

    def __init__(
        self,
        client: StoreClient,
        run_id: str,
        *,
        server: StoreServer | None = None,
        hosting: bool = False,
        known: Known | None = None,
        serves_workers: bool = False,
    ) -> None:
        if serves_workers:
            self.workers_store = (client.address.host, client.address.port)
        self.hosting = hosting or server is not None
        self._client = client
        self._server = server
        self._run_id = run_id
        self._keys = Keys(run_id)
        self._known = Known() if known is None else known
        self._last = ORIGIN
        """An entry that was read or written here; mostly the one that the next append builds on."""
        self._given: tuple[int, bytes] | None = None  # the entry that was last waited for, and its record
        self._gone: set[int] = set()
        self._rows_seen: dict[int, tuple[bytes, Row]] = {}
        """The records of rows when all were last read, with their meaning: of a thousand mostly one has changed."""
        self._listed = 0  # rows up to this serial are known to have their keys

    def connect(self) -> C10dBackend:
        """Return another connection to the same job; raise StoreLostError if no server listens any more."""
        try:
            client = StoreClient(self._client.address, self._client.read_timeout)
        except RendezvousConnectionError as exc:
            if isinstance(exc.__cause__, ConnectionRefusedError):  # no answer may be the network's fault
                raise StoreLostError(exc.message, hint=exc.hint) from exc
            raise
        shared = self.workers_store is not None
        return C10dBackend(client, self._run_id, hosting=self.hosting, known=self._known, serves_workers=shared)

    def close(self) -> None:
        """Close this connection; its wait ends. If this agent's first connection hosts the store, the store ends."""
        self._client.close()
        if self._server is not None:
            self._server.close()

    # The roster ------------------------------------------------------------------------------------------------------

    def enter(self, node_id: str, value: bytes) -> int:
        """Add a row: its serial first, under the node's name, and then the row, which a repetition completes.

        A node's row is entered over one connection at a time: who has claimed the serial writes the row unasked.
        """
        check_size(f"The row of {node_id}", value)  # before it costs a serial
        name, claimed = self._keys.node(node_id), UNWRITTEN
        while True:
            if claimed == UNWRITTEN or self._client.peek(self._keys.row(READER.number(claimed))) == REMOVED:
                serial = self._client.add(self._keys.arrivals, 1)
                found = self._client.swap_seen(name, claimed, b"%d" % serial)
                if READER.number(found) != serial:  # it was here before, or is entered over another connection
                    claimed = found
                    continue
                found = Row(node_id, serial, 0, value).pack()
                self._client.put_all({self._keys.row(serial): found, self._keys.heartbeat(serial): b"0"})
            else:
                serial = READER.number(claimed)
                found = self._client.create(self._keys.row(serial), Row(node_id, serial, 0, value).pack())
            if found != REMOVED:
                self._known.serials[node_id], self._known.written[node_id] = serial, (serial, found)
                self._changed(ROW_CHANGED)
                return serial

    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        """Replace a row's value, unless it is as new or gone."""
        check_size(f"The row of {node_id}", value)
        found = self._known.written.pop(node_id, None)
        if found is None or READER.row(found[1]).revision >= revision:
            found = self._find(node_id)
        while found is not None and READER.row(found[1]).revision < revision:
            serial, old = found
            record = Row(node_id, serial, revision, value).pack()
            if self._client.swap(self._keys.row(serial), old, record):
                self._known.written[node_id] = serial, record
                self._changed(ROW_CHANGED)
                return
            found = self._find(node_id)

    def heartbeat(self, node_id: str, count: int, watch: str | None = None) -> HeartbeatReply:
        """Set the row's heartbeat, and report; four round trips, however large the job is."""
        mine = self._find(node_id)
        if mine is not None:
            self._client.put(self._keys.heartbeat(mine[0]), b"%d" % count)
        return HeartbeatReply(
            revision=None if mine is None else READER.row(mine[1]).revision,
            watched=None if watch is None else self._heartbeat_of(watch),
            head=self._newest(),
        )

    def _heartbeat_of(self, node_id: str) -> int | None:
        """Return a node's heartbeat; None where it has no row, or no heartbeat that can be read."""
        with contextlib.suppress(RendezvousStateError):
            if (found := self._find(node_id)) is not None:
                return self._client.count(self._keys.heartbeat(found[0]))
        return None

    def remove(self, node_id: str) -> None:
        """Delete a row: a mark takes its place, which nothing replaces."""
        while (found := self._find(node_id)) is not None:
            serial, old = found
            if self._client.swap(self._keys.row(serial), old, REMOVED):
                self._changed(ROW_CHANGED)
                return

    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        """Return the rows, in order of serial; three round trips, however many they are, unless some are arriving."""
        if ids is not None and len(ids) < FEW:
            return self._rows(ids)
        arrived = self._client.count(self._keys.arrivals)
        serials = [serial for serial in range(1, arrived + 1) if serial not in self._gone]
        self._make_readable([serial for serial in serials if serial > self._listed])
        self._listed = arrived
        values = self._client.fetch([*map(self._keys.row, serials), *map(self._keys.heartbeat, serials)])
        found, broken = [], []
        for serial, record, heartbeat in zip(serials, values[: len(serials)], values[len(serials) :], strict=True):
            try:
                row = None if record == UNWRITTEN else self._row(serial, record)
                if row is not None and (ids is None or row.node_id in ids):
                    found.append(
                        RosterRow(row.node_id, serial, row.revision, row.value, READER.number(heartbeat or b"0"))
                    )
            except RendezvousStateError as exc:
                broken.append(RosterRow.unreadable(f"row/{serial}", str(exc)))
        return [*broken, *found]

    def _row(self, serial: int, record: bytes) -> Row | None:
        """Return what a row's record means; None for one that is removed."""
        if record == REMOVED:
            self._gone.add(serial)
            self._rows_seen.pop(serial, None)
            return None
        known, row = self._rows_seen.get(serial, (None, None))
        if row is None or known != record:
            row = READER.row(record)
            self._rows_seen[serial] = record, row
        return row

    def _rows(self, ids: Collection[str]) -> list[RosterRow]:
        """Return a few rows; two or three round trips for each, however large the job is."""
        found = []
        for node_id in ids:
            try:
                if (place := self._find(node_id)) is not None:
                    row, heartbeat = READER.row(place[1]), self._client.count(self._keys.heartbeat(place[0]))
                    found.append(RosterRow(node_id, place[0], row.revision, row.value, heartbeat))
            except RendezvousStateError as exc:
                found.append(RosterRow.unreadable(node_id, str(exc)))
        return sorted(found, key=lambda row: row.serial)

    def _find(self, node_id: str) -> tuple[int, bytes] | None:
        """Return the serial and the record of a node's row: one round trip where it was seen before and stands."""
        serial = self._known.serials.get(node_id)
        record = None if serial is None else self._client.peek(self._keys.row(serial))
        if record is None or record == REMOVED:
            serial = self._client.count(self._keys.node(node_id))
            record = self._client.peek(self._keys.row(serial))
        if not serial or not record or record == REMOVED:
            self._known.serials.pop(node_id, None)
            return None
        self._known.serials[node_id] = serial
        return serial, record

    def _make_readable(self, serials: Sequence[int]) -> None:
        """Create what is missing, empty: a serial is handed out before its row is written, and reads wait for keys.

        When a thousand come at once that is so with few of them, which are found by halving.
        """
        keys = [key for serial in serials for key in (self._keys.row(serial), self._keys.heartbeat(serial))]
        if not keys or self._client.exist(*keys):
            return
        if len(serials) > 1:
            half = len(serials) // 2
            self._make_readable(serials[:half])
            self._make_readable(serials[half:])
            return
        for key in keys:
            self._client.create(key, UNWRITTEN)

    # The ledger ------------------------------------------------------------------------------------------------------

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        """Write an entry on top of ``prev``; nothing goes away between the look at ``prev`` and the write."""
        record = Entry(entry, data).pack()
        if prev != self._last:
            self.read(prev.index)
        if prev not in (self._last, ORIGIN):
            return False
        if READER.entry(self._client.create(self._keys.ledger(entry.index), record)).link != entry:
            return False
        self._last = entry
        self._has(entry.index)
        self._changed(ENTRY_APPENDED, {self._keys.newest: record})
        return True

    def read(self, index: int) -> bytes | None:
        """Return an entry's data. One that may not be there is not peeked at, which would wake all who wait for it."""
        if self._given is not None and self._given[0] == index:
            record: bytes | None = self._given[1]
        else:
            key = self._keys.ledger(index)
            record = self._client.peek(key) if index <= self._known.head or self._client.exist(key) else None
        if record is None:
            return None
        self._has(index)
        entry = READER.entry(record)
        self._last = entry.link
        return entry.data

    def shrink(self, index: int) -> None:
        """Let go of an entry's data; its key stays, so that nothing else is ever created there."""
        key = self._keys.ledger(index)
        if (record := self._client.peek(key)) is not None:
            self._client.swap(key, record, Entry(READER.entry(record).link, TOMBSTONE).pack())

    def forget_workers(self) -> None:
        """Delete every key that is no job's of ours."""
        for name in self._client.names() or ():
            if not name.startswith(ROOT):
                self._client.delete(name)

    def erase(self) -> bool:
        """Delete all of the job's keys, where this torch can list them."""
        names = self._client.names()
        if names is None:
            return False
        for name in names:
            if name.startswith(self._keys.prefix):
                self._client.delete(name)
        return True

    def _newest(self) -> int:
        """Return the index of the newest entry, which is mostly the known one or the next.

        Who knows none is told of one, and hears of what is newer when it waits for that.
        """
        if not self._known.head and (told := self._client.peek(self._keys.newest)):
            index = READER.entry(told).link.index
            self._given = index, told
            self._has(index)
            return index
        head, step, longer = self._known.head, 1, 1
        while self._client.exist(self._keys.ledger(head + step)):
            head, step, longer = head + step, longer, 2 * longer
        while (step := step // 2) > 0:
            if self._client.exist(self._keys.ledger(head + step)):
                head += step
        self._has(head)
        return head

    def _has(self, index: int) -> None:
        self._known.head = max(self._known.head, index)

    # Both ------------------------------------------------------------------------------------------------------------

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        """Block until something is new: until the next entry's key is there, or the next change's bell."""
        deadline = time.monotonic() + timeout
        self._has(cursor.head)  # over whichever connection that was read
        if timeout > 0 and not roster and cursor.head == self._known.head:
            return Cursor(self._await(cursor.head + 1, deadline), cursor.roster)
        while True:
            changes, version = split_changes(self._client.count(self._keys.changes)) if roster else (0, cursor.roster)
            now = Cursor(self._newest(), version)
            left = deadline - time.monotonic()
            if now != cursor or left <= 0:
                return now
            if roster:
                self._client.wait_for(self._keys.change(changes + 1), min(left, BELL_PATIENCE))
            else:
                self._client.wait_for(self._keys.ledger(now.head + 1), left)

    def _await(self, index: int, deadline: float) -> int:
        """Block until there is this entry, the first that is not known, or the deadline; the newest index known then.

        Whether that entry is there already, the wait says as well; and of the one after it, the next wait. A wait that
        ends without it says nothing: an answer that came after the deadline was thrown away.
        """
        if not (record := self._client.wait_and_get(self._keys.ledger(index), deadline - time.monotonic())):
            return self._newest()
        self._given = index, record
        self._has(index)
        return index

    def _changed(self, what: int, also: Mapping[str, bytes] = MappingProxyType({})) -> None:
        """Count a change that is made, and wake who waits for one; write ``also`` on that occasion.

        The bell that is deleted then has no waiter: KEPT_BELLS changes were complete after it.
        """
        count = self._client.add(self._keys.changes, what)
        changes, _ = split_changes(count)
        self._client.put_all({**also, **{self._keys.change(bell): b"1" for bell in (changes, changes - 1)}})
        self._client.delete(self._keys.change(changes - KEPT_BELLS))
        if count >= ROW_CYCLE:  # of several that see it one succeeds, and any later change tries again
            self._client.swap(self._keys.changes, b"%d" % count, b"%d" % (count - ROW_CYCLE))
