"""One server of the store: its data, and the effect of each operation."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from elastic_core.rendezvous.backend import TOMBSTONE, Cursor, HeartbeatReply, Link, RosterRow

if TYPE_CHECKING:
    from simulator.store import Call


class AppendFault(enum.Enum):
    """A violation of the contract of append."""

    NO = "no"
    UNKEPT = "unkept"
    """It acknowledges an entry that it has not taken."""
    TWOFOLD = "twofold"
    """It takes two entries at one index: the second replaces the first."""


class Replica:
    """The data of one server: a minimal implementation of a store."""

    def __init__(self, appended: Callable[[Replica, Any], None], shrunk: Callable[[Replica, int], None]) -> None:
        self.entries: list[tuple[str, bytes | None]] = []
        self.rows: dict[str, RosterRow] = {}
        self.arrivals = self.version = 0
        self.waiting: list[Call] = []
        self.append_fault = AppendFault.NO
        self._appended, self.shrunk = appended, shrunk
        self.overwritten: Callable[[], None] = lambda: None
        """Called before an entry replaces another."""

    @property
    def head(self) -> int:
        """Index of the newest entry."""
        return len(self.entries)

    def copy(self) -> Replica:
        """Return another server with the same data."""
        other = Replica(self._appended, self.shrunk)
        other.take_over(self)
        return other

    def take_over(self, other: Replica) -> None:
        """Replace all data by another server's."""
        self.entries, self.rows = list(other.entries), dict(other.rows)
        self.arrivals, self.version = other.arrivals, other.version

    def enter(self, node_id: str, value: bytes) -> int:
        """Enter a row, as a backend does; so do the methods that follow."""
        if node_id not in self.rows:
            self.arrivals += 1
            self.rows[node_id] = RosterRow(node_id, self.arrivals, 0, value, 0)
            self._changed()
        return self.rows[node_id].serial

    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        row = self.rows.get(node_id)
        if row is not None and row.revision < revision:
            self.rows[node_id] = RosterRow(node_id, row.serial, revision, value, row.heartbeat)
            self._changed()

    def heartbeat(self, node_id: str, count: int, watch: str | None) -> HeartbeatReply:
        row = self.rows.get(node_id)
        if row is not None:
            self.rows[node_id] = RosterRow(node_id, row.serial, row.revision, row.value, count)
        watched = self.rows.get(watch) if watch is not None else None
        return HeartbeatReply(len(self.entries), row.revision if row else None, watched.heartbeat if watched else None)

    def remove(self, node_id: str) -> None:
        if self.rows.pop(node_id, None) is not None:
            self._changed()

    def roster(self, ids: Collection[str] | None) -> list[RosterRow]:
        return [row for row in self.rows.values() if ids is None or row.node_id in ids]

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        if self._id(entry.index) == entry.id:
            return True
        if self.append_fault is AppendFault.UNKEPT and self.head == prev.index:
            return True
        if self.append_fault is AppendFault.TWOFOLD and self.head == entry.index and self._id(prev.index) == prev.id:
            self.overwritten()
            self.entries.pop()
        if self.head != prev.index or self._id(prev.index) != prev.id:
            return False
        self.entries.append((entry.id, data))
        self._appended(self, data)
        self._tell(lambda call: call.cursor.head != self.head)
        return True

    def add(self, entry_id: str, data: bytes) -> None:
        """Append an entry of any author."""
        self.entries.append((entry_id, data))
        self._tell(lambda call: call.cursor.head != self.head)

    def read(self, index: int) -> bytes | None:
        return self.entries[index - 1][1] if 1 <= index <= self.head else None

    def replace(self, place: int, data: bytes | None) -> None:
        """Replace an entry by another value or nothing; the next one still follows it."""
        self.entries[place] = (self.entries[place][0], data)

    def shrink(self, index: int) -> None:
        if 1 <= index < self.head:
            self.entries[index - 1] = (self.entries[index - 1][0], TOMBSTONE)
            self.shrunk(self, index)

    def ping(self) -> None:
        """Do nothing: a simulated server needs no first request."""

    def wait(self, cursor: Cursor, roster: bool, timeout: float) -> Cursor | None:
        """Return the new cursor; None without a change."""
        if cursor.head != self.head or (roster and cursor.roster != self.version):
            return Cursor(self.head, self.version)
        return None

    def _changed(self) -> None:
        self.version += 1
        self._tell(lambda call: call.watches_roster and call.cursor.roster != self.version)

    def _tell(self, concerns: Callable[[Call], bool]) -> None:
        told = [call for call in self.waiting if concerns(call)]
        if told:
            self.waiting = [call for call in self.waiting if call not in told]
            for call in told:
                call.reply(Cursor(self.head, self.version))

    def _id(self, index: int) -> str | None:
        if index == 0:
            return ""
        return self.entries[index - 1][0] if index <= self.head else None
