"""The ``file`` backend: a directory that every agent of the job can reach. No server, no port.

On one host the kernel tells of changes; on a network mount every agent looks five times a second. A job's directory::

    ledger/00000007             entry 7, whose data is let go in the end; never deleted
    serials/00000003            the third arrival's node id; a number is taken by linking its file
    roster/00000003-n7.5        the third arrival, node n7, is at revision 5; empty, and renamed to amend it
    values/00000003-n7.5        the row itself, complete before ``roster`` says 5
    heartbeats/00000003-n7           its heartbeat, overwritten in place
    scratch/                    drafts, by host and process id; what stays here never matters

The empty file in ``roster`` *is* the row. Renaming it from one revision to a greater is a compare-and-set, which no
late writer wins and which brings no removed row back; and the names alone tell a waiter whether anything has changed.
Heartbeats are files that no process watches.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import struct
import time
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.rendezvous import (
    MAX_RECORD_BYTES,
    TOMBSTONE,
    Cursor,
    Entry,
    HeartbeatReply,
    Link,
    RecordReader,
    RendezvousBackend,
    RosterRow,
    Row,
    check_size,
    hex_digest,
    quoted,
)
from elastic_rdzv_file.disk import (
    DELETED,
    PLANTED,
    Numbered,
    discard,
    fetch,
    overwrite,
    present,
    publish,
    republish,
    revalidate,
    safe_name,
    store_errors,
)
from elastic_rdzv_file.inotify import Alarm

HEARTBEAT_SIZE = 16  # the bytes of a heartbeat
_TORN = 10  # reads of a heartbeat that may be torn in a row, before it counts as something else

_KEY = re.compile(r"[0-9]{8,}-(.+)")
_MARK = re.compile(r"([0-9]{8,})-(.+)\.([0-9]+)")
_HEARTBEAT = struct.Struct(">QQ")
_ONES = 2**64 - 1


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A row, as the name of its file in ``roster/`` tells it."""

    serial: int
    name: str  # the node id, as :func:`~elastic_rdzv_file.disk.safe_name` spells it
    revision: int

    @property
    def key(self) -> str:
        """The part that stays the same while the revision grows."""
        return f"{self.serial:08d}-{self.name}"

    def __str__(self) -> str:
        return f"{self.key}.{self.revision}"


def marks_in(names: Iterable[str]) -> dict[str, Mark]:
    """Return every row's newest mark among the names of files, by the row's name. Files of others are passed over."""
    marks: dict[str, Mark] = {}
    for text in names:
        if (match := _MARK.fullmatch(text)) is not None:
            mark = Mark(int(match[1]), match[2], int(match[3]))
            marks[mark.name] = max(mark, marks.get(mark.name, mark))
    return marks


def rows_in(keys: Iterable[str]) -> set[str]:
    """Return the names of rows among the keys of marks (:attr:`Mark.key`). Files of others are passed over."""
    return {match[1] for key in keys if (match := _KEY.fullmatch(key)) is not None}


def reader(path: str) -> RecordReader:
    """Return the reader of the record in a file."""
    return RecordReader(repr(path), PLANTED)


def pack_heartbeat(count: int) -> bytes:
    """Return the count and its complement, so that a torn read is seen to be one."""
    return _HEARTBEAT.pack(count, count ^ _ONES)


def unpack_heartbeat(content: bytes) -> int | None:
    """Return the count; None when the read was torn, and is to be repeated."""
    if len(content) != HEARTBEAT_SIZE:
        return None
    count, complement = _HEARTBEAT.unpack(content)
    return int(count) if count ^ complement == _ONES else None


class JobDirectory:
    """The paths in one job's directory, and the shared memory of its connections."""

    def __init__(self, directory: str, *, parent_is_ours: bool = False, shared: bool = False) -> None:
        self.directory = directory
        self._shared = shared
        self._parent = os.path.dirname(directory)
        self._parent_is_ours = parent_is_ours
        self.ledger = Numbered(f"{directory}/ledger")
        self.serials = Numbered(f"{directory}/serials")
        self.roster = f"{directory}/roster"
        self.values = f"{directory}/values"
        self.heartbeats = f"{directory}/heartbeats"
        self.scratch = f"{directory}/scratch"
        self._device: int | None = None  # the file system that it was on when it was first seen

    def make(self) -> None:
        """Make the directories that are not there, also when they were deleted under a running job.

        Only this job's user may enter: who can write here decides what the job does, and incidents quote its output.
        Users that share a job make the directory themselves, with the mode they want, and say that it is shared.

        Raises:
            RendezvousStateError: The job's directory is not one, or was planted by another user.
            RendezvousConnectionError: It cannot be made, or its file system is no longer mounted there.
        """
        with store_errors(self.directory):
            self._check_mount()
            with suppress(FileExistsError):
                os.mkdir(self.directory, 0o700)
            status = os.lstat(self.directory)
            if not stat.S_ISDIR(status.st_mode):
                raise RendezvousStateError(f"{self.directory!r} is not a directory.", hint=PLANTED)
            if not self._shared:
                self._check_private(status)
            numbered = (self.ledger.directory, self.serials.directory)
            for part in (*numbered, self.roster, self.values, self.heartbeats, self.scratch):
                Path(part).mkdir(exist_ok=True)

    def erase(self) -> None:
        """Delete it, all that is in it, and its parent if made for it and empty; raise OSError if not permitted."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.directory)
        if self._parent_is_ours:
            with suppress(OSError):  # another process is there
                os.rmdir(self._parent)

    def _check_private(self, status: os.stat_result) -> None:
        """Refuse a directory in which others decide: they own it, or all users may write there."""
        mode, fault = stat.S_IMODE(status.st_mode), ""
        if status.st_uid not in (os.geteuid(), 0):
            fault = f"belongs to another user ({status.st_uid})"
        elif mode & stat.S_IWOTH:
            fault = f"can be written to by every user (mode {mode:04o})"
        if fault:
            raise RendezvousStateError(
                f"{self.directory!r} {fault}: every writer there decides what the job does.",
                hint="Use a directory of this user's. If several users are to share the job, or the file server has "
                "other user ids than this host, say --rdzv_conf shared=true.",
            )

    def _check_mount(self) -> None:
        """Refuse to begin anew, each host for itself, on the bare mount point of a share that is gone."""
        device = os.stat(self._parent).st_dev
        if self._device is None:
            self._device = device
        elif device != self._device:
            raise RendezvousConnectionError(
                f"The rendezvous directory does not work: another file system is mounted at "
                f"{self._parent!r} than before, or none.",
                hint="Mount it again: the nodes of a job meet there.",
            )


class FileBackend(RendezvousBackend):
    """One connection to one job's directory, which :meth:`open` makes."""

    def __init__(self, store: JobDirectory, poll_interval: float | None = None) -> None:
        self._store = store
        self._poll_interval = poll_interval
        self._alarm = Alarm(poll_interval)
        self._known: dict[str, Mark] = {}
        """The last known places of rows, by name: most are still there, and need not be searched for."""

    @classmethod
    def open(
        cls, parent: Path, run_id: str, poll_interval: float | None = None, *, made: bool = False, shared: bool = False
    ) -> FileBackend:
        """Return the first connection to the store of job ``run_id`` below ``parent``.

        ``made`` says that ``parent`` was made for it, so that :meth:`erase` deletes that, too; ``shared`` that other
        users may own the job's directory.

        Raises:
            RendezvousConnectionError: It cannot be made.
            RendezvousStateError: Another user has put something else there.
        """
        store = JobDirectory(os.path.join(parent, safe_name(run_id)), parent_is_ours=made, shared=shared)
        store.make()
        return cls(store, poll_interval)

    def connect(self) -> FileBackend:
        """Return another connection to the same directory, which is made anew where it has been deleted."""
        self._store.make()
        with self._io():
            self._store.ledger.last()
            return FileBackend(self._store, self._poll_interval)

    def close(self) -> None:
        """Close this connection; its wait ends."""
        self._alarm.close()

    # The roster ------------------------------------------------------------------------------------------------------

    def enter(self, node_id: str, value: bytes) -> int:
        """Add a row. Its files come first, and the mark that makes it a row comes last."""
        check_size(f"The row of {node_id}", value)
        with self._io():
            if (mark := self._find(safe_name(node_id))) is not None:
                return mark.serial
            mark = Mark(self._arrive(node_id), safe_name(node_id), 0)
            record = Row(node_id, mark.serial, 0, value).pack()
            publish(self._store.scratch, f"{self._store.values}/{mark}", record)
            publish(self._store.scratch, f"{self._store.heartbeats}/{mark.key}", pack_heartbeat(0))
            publish(self._store.scratch, f"{self._store.roster}/{mark}", b"")
            return mark.serial

    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        """Replace a row's value, unless it is as new or gone."""
        check_size(f"The row of {node_id}", value)
        values, roster = self._store.values, self._store.roster
        draft: Mark | None = None
        with self._io():
            while (mark := self._find(safe_name(node_id))) is not None and mark.revision < revision:
                draft = replace(mark, revision=revision)
                record = Row(node_id, draft.serial, revision, value).pack()
                publish(self._store.scratch, f"{values}/{draft}", record)
                try:
                    os.rename(f"{roster}/{mark}", f"{roster}/{draft}")
                except FileNotFoundError:
                    continue  # another amendment or the removal came first
                self._known[draft.name] = draft
                discard(f"{values}/{mark}")
                return
            if draft is not None and draft != mark:
                discard(f"{values}/{draft}")

    def heartbeat(self, node_id: str, count: int, watch: str | None = None) -> HeartbeatReply:
        """Set the row's heartbeat, and report; a fixed number of look-ups, however large the job is."""
        with self._io():
            mark = self._find(safe_name(node_id))
            if mark is not None:
                overwrite(f"{self._store.heartbeats}/{mark.key}", pack_heartbeat(count))
            return HeartbeatReply(
                head=self._store.ledger.last(),
                revision=None if mark is None else mark.revision,
                watched=count if watch == node_id and mark is not None else self._watched(watch),
            )

    def remove(self, node_id: str) -> None:
        """Delete a row: the mark first, since that is the row."""
        with self._io():
            while (mark := self._find(safe_name(node_id))) is not None:
                if discard(f"{self._store.roster}/{mark}"):  # else an amendment came first
                    discard(f"{self._store.values}/{mark}")
                    discard(f"{self._store.heartbeats}/{mark.key}")

    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        """Return the rows, in order of serial; two listings, and two reads a row.

        A mark that is renamed during the listing may be missing in it, and is then looked for; heartbeats keep their
        names.
        """
        with self._io():
            marks = self._marks()
            if ids is None:
                names = marks.keys() | rows_in(os.listdir(self._store.heartbeats))
            else:
                names = {safe_name(node_id) for node_id in ids}
            found = [marks.get(name) or self._find(name) for name in names]
            rows = [row for mark in found if mark is not None and (row := self._row(mark)) is not None]
            return sorted(rows, key=lambda row: row.serial)  # only now: a row read late may have entered again

    # The ledger ------------------------------------------------------------------------------------------------------

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        """Write an entry on top of ``prev``, which stays what it was when it was read: entries are never replaced."""
        record = Entry(entry, data).pack()
        with self._io():
            if prev.index and ((before := self._entry(prev.index)) is None or before.link != prev):
                return False
            if publish(self._store.scratch, self._store.ledger.path(entry.index), record, durable=True):
                return True
            there = self._entry(entry.index)
            return there is not None and there.link == entry

    def read(self, index: int) -> bytes | None:
        """Return an entry's data."""
        with self._io():
            entry = self._entry(index)
            return None if entry is None else entry.data

    def shrink(self, index: int) -> None:
        """Let go of an entry's data: a file with its id alone takes the place, at once."""
        with self._io():
            entry = self._entry(index)
            if entry is not None and entry.data:
                tombstone = Entry(entry.link, TOMBSTONE).pack()
                republish(self._store.scratch, self._store.ledger.path(index), tombstone)

    def erase(self) -> bool:
        """Delete the job's directory, and the endpoint if that was made for it."""
        with self._io():
            self._store.erase()
        return True

    # Both ------------------------------------------------------------------------------------------------------------

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        """Block until something is new."""
        deadline = time.monotonic() + timeout
        while True:
            with self._io():
                version = self._version(cursor.roster) if roster else cursor.roster
                now = Cursor(self._store.ledger.last(), version)
                left = deadline - time.monotonic()
                if now != cursor or left <= 0:
                    return now
                watched = self._alarm.watch(self._store.ledger.directory)
                if roster:
                    watched |= self._alarm.watch(self._store.roster)
                if not watched:  # else something may have happened just before it was
                    self._alarm.sleep(left)

    def _version(self, known: int) -> int:
        """Return the roster's version; one that differs from ``known`` has been seen twice.

        A row that is renamed during the listing may be missed, and what is seen then can be the very version that the
        roster has once that row is removed, which would be slept through.
        """
        version = self._glance()
        while version != known and version != (again := self._glance()):
            version = again
        return version

    def _glance(self) -> int:
        """Return what marks there are, and how many there ever were, which together never recur."""
        if (arrivals := self._store.serials.last()) == 0:
            return 0
        marks = sorted(str(mark) for mark in self._marks().values())
        return int(hex_digest("\n".join([str(arrivals), *marks]), 14), 16)

    def _io(self) -> AbstractContextManager[None]:
        if self._alarm.closed:
            raise RendezvousConnectionError(f"This connection to {self._store.directory!r} is closed.")
        return store_errors(self._store.directory)

    def _entry(self, index: int) -> Entry | None:
        path = self._store.ledger.path(index)
        record = fetch(path, MAX_RECORD_BYTES)
        return None if record is None else reader(path).entry(record)

    def _arrive(self, node_id: str) -> int:
        serial = self._store.serials.last() + 1
        while not publish(self._store.scratch, self._store.serials.path(serial), quoted(node_id).encode()):
            serial += 1
        return serial

    def _marks(self) -> dict[str, Mark]:
        """Return every row's mark, by name; a row that is renamed during the listing may be missed."""
        return marks_in(os.listdir(self._store.roster))

    def _find(self, name: str) -> Mark | None:
        """Return a row's mark; None for no such row, and then two listings have agreed about it."""
        known = self._known.get(name)
        revalidate(self._store.roster)  # what another host has renamed looks present until the server is asked
        if known is not None and present(f"{self._store.roster}/{known}"):
            return known
        marks = self._marks()
        while name not in marks and marks != (again := self._marks()):
            marks = again
        self._known.pop(name, None)
        if name in marks:
            self._known[name] = marks[name]
        return marks.get(name)

    def _row(self, mark: Mark) -> RosterRow | None:
        at: Mark | None = mark
        while at is not None:
            path = f"{self._store.values}/{at}"
            try:
                with store_errors(self._store.directory):
                    if (record := fetch(path, MAX_RECORD_BYTES)) is not None:
                        row = reader(path).row(record)
                        heartbeat = self._heartbeat_of(at)
                        if heartbeat is None:
                            return None
                        return RosterRow(row.node_id, at.serial, at.revision, row.value, heartbeat)
            except RendezvousStateError as exc:
                return RosterRow.unreadable(unquote(at.name), str(exc))
            found = self._find(mark.name)
            if found == at:
                return RosterRow.unreadable(unquote(at.name), f"{path!r} is gone. {DELETED}")
            at = found
        return None

    def _watched(self, node_id: str | None) -> int | None:
        mark = None if node_id is None else self._find(safe_name(node_id))
        with suppress(RendezvousStateError), store_errors(self._store.directory):
            return None if mark is None else self._heartbeat_of(mark)
        return None

    def _heartbeat_of(self, mark: Mark) -> int | None:
        path = f"{self._store.heartbeats}/{mark.key}"
        for _ in range(_TORN):
            content = fetch(path, HEARTBEAT_SIZE)
            if content is None:
                return None
            if (count := unpack_heartbeat(content)) is not None:
                return count
        raise RendezvousStateError(f"{path!r} is no heartbeat: {content!r}.", hint=PLANTED)
