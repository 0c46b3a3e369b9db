"""A rendezvous backend on SQLite: several agents on one host, one file, no server.

SQLite has transactions but wakes nobody. So every connection has a bell, a datagram socket with a random name that is
noted in the database, and who changes something rings them all *before* the commit. Who is rung waits for that
transaction to end and looks again: nothing is missed, even if the writer is killed in between. The sockets live in
Linux's abstract namespace, so they need no path and vanish with their process.
"""

from __future__ import annotations

import contextlib
import fcntl
import secrets
import socket
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from elastic_core import (
    RendezvousBackend,
    RendezvousConnectionError,
    RendezvousOptions,
    RendezvousParameters,
    UsageError,
    hookimpl,
)
from elastic_core.rendezvous import Cursor, HeartbeatReply, Link, RosterRow, check_size

TABLES = (
    "job (name TEXT PRIMARY KEY, arrivals INTEGER DEFAULT 0, version INTEGER DEFAULT 0)",
    "node (job TEXT, id TEXT, serial INTEGER, revision INTEGER DEFAULT 0, value BLOB, heartbeat INTEGER DEFAULT 0,"
    " PRIMARY KEY (job, id))",
    "entry (job TEXT, number INTEGER, id TEXT, data BLOB, PRIMARY KEY (job, number))",
    "bell (job TEXT, name BLOB, PRIMARY KEY (job, name))",
)


class SqliteBackend(RendezvousBackend):
    """One connection to one job's rows in a database, which is made if it is not there."""

    def __init__(self, path: Path, job: str) -> None:
        self._path = path
        self._job = job
        self._closed = False
        self._busy = threading.Lock()  # held in a transaction
        self._resting = threading.Lock()  # held while the bell is listened to
        with contextlib.ExitStack() as stack:
            try:
                self._turnstile = stack.enter_context(open(f"{path}.lock", "w"))
                opened = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
                self._database = stack.enter_context(contextlib.closing(opened))
            except (OSError, sqlite3.Error) as exc:
                raise self._failure(exc) from exc
            self._bell = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            self._bell.bind(b"\0elastic-example-" + secrets.token_hex(8).encode())
            self._hammer = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            self._hammer.setblocking(False)
            self._prepare()
            self._resources = stack.pop_all()

    def _prepare(self) -> None:
        with self._transaction() as database:
            for table in TABLES:
                database.execute(f"CREATE TABLE IF NOT EXISTS {table}")
            database.execute("INSERT OR IGNORE INTO job (name) VALUES (?)", (self._job,))
            database.execute("INSERT INTO bell VALUES (?, ?)", (self._job, self._bell.getsockname()))

    def connect(self) -> SqliteBackend:
        """Another connection to the same rows."""
        self._check_open()
        return SqliteBackend(self._path, self._job)

    def close(self) -> None:
        """Close this connection; its wait ends."""
        with self._busy:
            if not self._closed:
                self._closed = True
                self._ring(self._bell.getsockname())
                with self._resting:
                    self._resources.close()

    # The roster ------------------------------------------------------------------------------------------------------

    def enter(self, node_id: str, value: bytes) -> int:
        """Add a row."""
        check_size(f"The row of {node_id}", value)
        with self._transaction() as database:
            if (row := self._row(database, node_id)) is not None:
                return row.serial
            database.execute("UPDATE job SET arrivals = arrivals + 1 WHERE name = ?", (self._job,))
            (serial,) = database.execute("SELECT arrivals FROM job WHERE name = ?", (self._job,)).fetchone()
            database.execute(
                "INSERT INTO node (job, id, serial, value) VALUES (?, ?, ?, ?)", (self._job, node_id, serial, value)
            )
            self._roster_changed(database)
            return int(serial)

    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        """Replace a row's value, unless it is as new or gone."""
        check_size(f"The row of {node_id}", value)
        with self._transaction() as database:
            amended = database.execute(
                "UPDATE node SET revision = ?, value = ? WHERE job = ? AND id = ? AND revision < ?",
                (revision, value, self._job, node_id, revision),
            )
            if amended.rowcount:
                self._roster_changed(database)

    def heartbeat(self, node_id: str, count: int, watch: str | None = None) -> HeartbeatReply:
        """Set the row's heartbeat, and report."""
        with self._transaction() as database:
            database.execute("UPDATE node SET heartbeat = ? WHERE job = ? AND id = ?", (count, self._job, node_id))
            row = self._row(database, node_id)
            watched = None if watch is None else self._row(database, watch)
            return HeartbeatReply(
                head=self._cursor(database).head,
                revision=None if row is None else row.revision,
                watched=None if watched is None else watched.heartbeat,
            )

    def remove(self, node_id: str) -> None:
        """Delete a row."""
        with self._transaction() as database:
            if database.execute("DELETE FROM node WHERE job = ? AND id = ?", (self._job, node_id)).rowcount:
                self._roster_changed(database)

    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        """Return the rows, in order of serial."""
        with self._transaction() as database:
            found = database.execute(
                "SELECT id, serial, revision, value, heartbeat FROM node WHERE job = ? ORDER BY serial", (self._job,)
            )
            return [RosterRow(*row) for row in found if ids is None or row[0] in ids]

    # The ledger ------------------------------------------------------------------------------------------------------

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        """Write an entry on top of ``prev``."""
        check_size(f"Entry {entry.index}", data)
        with self._transaction() as database:
            if self._entry(database, entry.index)[0] == entry.id:
                return True
            if self._cursor(database).head != prev.index or self._entry(database, prev.index)[0] != prev.id:
                return False
            database.execute("INSERT INTO entry VALUES (?, ?, ?, ?)", (self._job, entry.index, entry.id, data))
            self._ring_all(database)
            return True

    def read(self, index: int) -> bytes | None:
        """Return an entry's data."""
        with self._transaction() as database:
            return self._entry(database, index)[1]

    def shrink(self, index: int) -> None:
        """Let go of an entry's data."""
        with self._transaction() as database:
            database.execute("UPDATE entry SET data = x'' WHERE job = ? AND number = ?", (self._job, index))

    def erase(self) -> bool:
        """Delete the job's rows in every table."""
        with self._transaction() as database:
            for table, job in (("job", "name"), ("node", "job"), ("entry", "job"), ("bell", "job")):
                database.execute(f"DELETE FROM {table} WHERE {job} = ?", (self._job,))
        return True

    # Both ------------------------------------------------------------------------------------------------------------

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        """Block until something is new."""
        deadline = time.monotonic() + timeout
        while True:
            with self._transaction() as database:
                now = self._cursor(database)
            left = deadline - time.monotonic()
            if now.head != cursor.head or (roster and now.roster != cursor.roster) or left <= 0:
                return now
            with self._resting, contextlib.suppress(TimeoutError):
                if not self._closed:
                    self._bell.settimeout(left)
                    self._bell.recv(1)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the database without other users; what the block did is undone if it raises."""
        with self._busy:
            self._check_open()
            fcntl.flock(self._turnstile, fcntl.LOCK_EX)  # SQLite's own lock is polled for, and starves who waits
            try:
                with self._database:
                    self._database.execute("BEGIN IMMEDIATE")
                    yield self._database
            except sqlite3.Error as exc:
                raise self._failure(exc) from exc
            finally:
                fcntl.flock(self._turnstile, fcntl.LOCK_UN)

    def _check_open(self) -> None:
        if self._closed:
            raise RendezvousConnectionError(f"This connection to {str(self._path)!r} is closed.")

    def _failure(self, exc: Exception) -> RendezvousConnectionError:
        return RendezvousConnectionError(f"The rendezvous database {str(self._path)!r} cannot be used: {exc}.")

    def _row(self, database: sqlite3.Connection, node_id: str) -> RosterRow | None:
        found = database.execute(
            "SELECT id, serial, revision, value, heartbeat FROM node WHERE job = ? AND id = ?", (self._job, node_id)
        ).fetchone()
        return None if found is None else RosterRow(*found)

    def _entry(self, database: sqlite3.Connection, index: int) -> tuple[str | None, bytes | None]:
        if index == 0:
            return "", None
        found = database.execute("SELECT id, data FROM entry WHERE job = ? AND number = ?", (self._job, index))
        return found.fetchone() or (None, None)

    def _cursor(self, database: sqlite3.Connection) -> Cursor:
        head = "SELECT coalesce(max(number), 0) FROM entry WHERE job = job.name"
        return Cursor(*database.execute(f"SELECT ({head}), version FROM job WHERE name = ?", (self._job,)).fetchone())

    def _roster_changed(self, database: sqlite3.Connection) -> None:
        database.execute("UPDATE job SET version = version + 1 WHERE name = ?", (self._job,))
        self._ring_all(database)

    def _ring_all(self, database: sqlite3.Connection) -> None:
        """Wake every connection of the job, and forget those whose process is gone."""
        for (name,) in database.execute("SELECT name FROM bell WHERE job = ?", (self._job,)).fetchall():
            if not self._ring(name):
                database.execute("DELETE FROM bell WHERE name = ?", (name,))

    def _ring(self, name: bytes) -> bool:
        """Ring one bell; False when it is no more."""
        try:
            self._hammer.sendto(b"!", name)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:
            pass  # it has been rung and not been heard yet
        return True


@hookimpl
def elastic_rendezvous_options() -> RendezvousOptions:
    """Return a file, and nothing else to choose."""
    return RendezvousOptions(endpoint="FILE", endpoint_required=True)


@hookimpl
def elastic_make_rendezvous(params: RendezvousParameters) -> RendezvousBackend:
    """Return the job's rows in the database that the endpoint names."""
    path = Path(params.endpoint).expanduser().absolute()
    if not path.parent.is_dir():
        raise UsageError(f"--rdzv_endpoint {params.endpoint!r}: there is no directory {str(path.parent)!r}.")
    return SqliteBackend(path, params.run_id)
