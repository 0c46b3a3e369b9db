"""The ``local`` backend: a store in this process's memory, for one node. The protocol's tests run on it, too.

It is also the shortest complete example of a store.
"""
# ruff: noqa: D102  (RendezvousBackend documents these methods)

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from elastic_core.errors import RendezvousConnectionError
from elastic_core.hookspecs import hookimpl
from elastic_core.rendezvous.backend import (
    TOMBSTONE,
    Cursor,
    HeartbeatReply,
    Link,
    RendezvousBackend,
    RosterRow,
    check_size,
)
from elastic_core.rendezvous.options import RendezvousOptions, RendezvousParameters


class MemoryStore:
    """The data that the connections of one job share; ``changed`` guards all of it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.entries: list[tuple[str, bytes]] = []  # entry n's id and data at index n - 1
        self.rows: dict[str, RosterRow] = {}  # in order of arrival
        self.arrivals = 0
        self.version = 0  # the roster's: the number of its changes other than heartbeats

    @property
    def head(self) -> int:
        """Index of the newest entry; 0 when there is none."""
        return len(self.entries)

    def put(self, row: RosterRow) -> None:
        """Make a row or replace it, and wake the threads that watch the roster."""
        self.rows[row.node_id] = row
        self.version += 1
        self.changed.notify_all()


class LocalBackend(RendezvousBackend):
    """One connection to a :class:`MemoryStore`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._closed = False

    def connect(self) -> LocalBackend:
        return LocalBackend(self._store)

    def close(self) -> None:
        with self._store.changed:
            self._closed = True
            self._store.changed.notify_all()

    def enter(self, node_id: str, value: bytes) -> int:
        check_size(f"The row of {node_id}", value)
        with self._opened() as store:
            if node_id not in store.rows:
                store.arrivals += 1
                store.put(RosterRow(node_id=node_id, serial=store.arrivals, revision=0, value=value, heartbeat=0))
            return store.rows[node_id].serial

    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        check_size(f"The row of {node_id}", value)
        with self._opened() as store:
            row = store.rows.get(node_id)
            if row is not None and row.revision < revision:
                store.put(replace(row, revision=revision, value=value))

    def heartbeat(self, node_id: str, count: int, watch: str | None = None) -> HeartbeatReply:
        with self._opened() as store:
            row = store.rows.get(node_id)
            if row is not None:
                store.rows[node_id] = replace(row, heartbeat=count)
            watched = store.rows.get(watch) if watch is not None else None
            return HeartbeatReply(
                head=store.head,
                revision=None if row is None else row.revision,
                watched=None if watched is None else watched.heartbeat,
            )

    def remove(self, node_id: str) -> None:
        with self._opened() as store:
            if store.rows.pop(node_id, None) is not None:
                store.version += 1
                store.changed.notify_all()

    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        with self._opened() as store:
            return [row for row in store.rows.values() if ids is None or row.node_id in ids]

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        check_size(f"Entry {entry.index}", data)
        with self._opened() as store:
            if self._id(entry.index) == entry.id:
                return True
            if store.head != prev.index or self._id(prev.index) != prev.id:
                return False
            store.entries.append((entry.id, data))
            store.changed.notify_all()
            return True

    def read(self, index: int) -> bytes | None:
        with self._opened() as store:
            return store.entries[index - 1][1] if 1 <= index <= store.head else None

    def shrink(self, index: int) -> None:
        with self._opened() as store:
            if 1 <= index <= store.head:
                store.entries[index - 1] = (store.entries[index - 1][0], TOMBSTONE)

    def erase(self) -> bool:
        with self._opened() as store:
            store.entries, store.rows, store.arrivals = [], {}, 0
            store.version += 1
            store.changed.notify_all()
            return True

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        def news() -> bool:
            return self._closed or self._store.head != cursor.head or (roster and self._store.version != cursor.roster)

        with self._store.changed:
            self._store.changed.wait_for(news, timeout)
            with self._opened() as store:
                return Cursor(store.head, store.version)

    @contextmanager
    def _opened(self) -> Iterator[MemoryStore]:
        """Yield the store, locked."""
        with self._store.changed:  # reentrant
            if self._closed:
                raise RendezvousConnectionError("This connection to the local store is closed.")
            yield self._store

    def _id(self, index: int) -> str | None:
        """Return the id of an entry, '' for the origin; None when there is none."""
        if index == 0:
            return ""
        return self._store.entries[index - 1][0] if index <= self._store.head else None


@hookimpl
def elastic_rendezvous_options() -> RendezvousOptions:
    """Declare no endpoint, one node, and no options; an option of ``c10d``, which it can replace, has no effect."""
    return RendezvousOptions(single_node=True, ignored={"connect_timeout": "this backend connects to nothing"})


@hookimpl
def elastic_make_rendezvous(params: RendezvousParameters) -> RendezvousBackend:
    """Return a connection to a new store."""
    return LocalBackend(MemoryStore())
