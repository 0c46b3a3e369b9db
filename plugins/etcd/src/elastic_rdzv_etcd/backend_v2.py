"""Roster and ledger on etcd's API v2, which changes one key at a time, each by compare-and-swap.

What one job keeps, below ``PREFIX/-<job id>/``, in a directory that lives for a week after the last heartbeat
(with etcd 3.5, which cannot lengthen that, for ever)::

    state/head      the newest entry: its index and its id
    state/roster    rewritten after every change of a row; its revision is the roster's version
    entry/7-<id>    an entry, in base64; of several with one number, those that head never named mean nothing
    ledger/7        the id of entry 7, once there is an eighth
    arrivals/…      one for each serial; etcd puts them in order
    row/<node>      a row, in base64
    heartbeat/<node>     its heartbeat

* **An append** writes the entry's data under a name of its own, and then swaps the head from the entry that it was
  built on: that is the one step which counts (S2). Before it goes on, ``ledger/<index>`` notes who stood there.
* **A row** is swapped by the revision of its key, so an older amendment never wins, and a row that is gone stays gone.
* **A change of a row** is marked after it was made; a node that is killed in between is noticed with the next look.

python-etcd may make a request twice after a lost reply, and then report a conflict with itself: the loser of a swap
reads, and may find its own entry there.
"""

from __future__ import annotations

import contextlib
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection
from typing import Any

import etcd

from elastic_core.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
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
    check_size,
    is_number,
    pack_link,
    quoted,
    unquoted,
)
from elastic_rdzv_etcd.backend import EXPIRY, LOOK_AGAIN, READER, RENEW
from elastic_rdzv_etcd.client_v2 import ClientV2
from elastic_rdzv_etcd.connection import Members

_NO_DIRECTORY = "Not a file"
"""The internal error with which etcd 3.5 answers a change of the time that a directory has to live."""

Found = tuple[str, int]  # a key's value, and the revision at which it was written


class EtcdV2Backend(RendezvousBackend):
    """One connection to one job's keys.

    Raises:
        RendezvousConnectionError: No member answers, or none lets us in or serves API v2.
        RendezvousStateError: What answers is not what it should be.
    """

    def __init__(self, members: Members, run_id: str) -> None:
        self.may_forget = not members.options.durable
        self._members = members
        self._run_id = run_id
        self._root = f"{members.options.prefix}/{_name(run_id)}"
        self._client = ClientV2(members)
        self._renewed_at = -RENEW
        try:
            with contextlib.suppress(etcd.EtcdKeyNotFound):
                self._client.call(lambda client: client.read(f"{self._root}/state", quorum=True), reaching=True)
        except (RendezvousConnectionError, RendezvousStateError):
            self._client.close()
            raise

    def connect(self) -> EtcdV2Backend:
        """Return another connection to the same job."""
        try:
            return EtcdV2Backend(self._members, self._run_id)
        except RendezvousConnectionError:
            self._members.look_up_again()
            raise

    def close(self) -> None:
        """Close this connection; its wait ends."""
        self._client.close()

    # The roster ------------------------------------------------------------------------------------------------------

    def enter(self, node_id: str, value: bytes) -> int:
        """Add a row: a place in the order of arrival first, and then the row, which a repetition completes."""
        name = _name(node_id)
        check_size(f"The row of {node_id}", value)  # before it costs a serial
        self._renewed_at = -RENEW  # the store may have come back empty, and would keep for ever what is put there now
        self._renew()
        while True:
            if (found := self._peek(f"row/{name}")) is not None:
                return _row(found).serial
            arrived = self._ask(lambda client: client.write(f"{self._root}/arrivals", node_id, append=True))
            order = sorted(key for key, _ in self._list("arrivals"))
            serial = order.index(arrived.key.rpartition("/")[2]) + 1
            self._put(f"heartbeat/{name}", "0")
            if self._swap(f"row/{name}", _encoded(Row(node_id, serial, 0, value).pack()), prevExist=False):
                self._mark()
                return serial

    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        """Replace a row's value, unless it is as new or gone."""
        key = f"row/{_name(node_id)}"
        check_size(f"The row of {node_id}", value)
        while (found := self._peek(key)) is not None:
            row = _row(found)
            if row.revision >= revision:
                return
            if self._swap(key, _encoded(Row(node_id, row.serial, revision, value).pack()), prevIndex=found[1]):
                self._mark()
                return

    def heartbeat(self, node_id: str, count: int, watch: str | None = None) -> HeartbeatReply:
        """Set the row's heartbeat, and report: four round trips. Once an hour one more, so that the job's keys stay."""
        self._renew()
        self._swap(f"heartbeat/{_name(node_id)}", str(count), prevExist=True)
        mine = self._peek(f"row/{_name(node_id)}")
        watched = None if watch is None else self._peek(f"heartbeat/{_name(watch)}")
        heartbeat = b"" if watched is None else watched[0].encode()
        head, _ = self._head()
        return HeartbeatReply(
            head=head.index,
            revision=None if mine is None else _row(mine).revision,
            watched=int(heartbeat) if is_number(heartbeat) else None,
        )

    def remove(self, node_id: str) -> None:
        """Delete a row, and its heartbeat."""
        gone = [self._delete(f"{kind}/{_name(node_id)}") for kind in ("row", "heartbeat")]
        if any(gone):
            self._mark()

    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        """Return the rows: two round trips, however many they are.

        Heartbeats come first: a row that is removed between the two looks is then not listed, and has no heartbeat
        that is gone.
        """
        heartbeats = dict(self._list("heartbeat"))
        rows = self._list("row")
        wanted = None if ids is None else {_name(node_id) for node_id in ids}
        found = [
            READER.listed(_id(name), _decoded(row[0]), heartbeats[name][0].encode() if name in heartbeats else None)
            for name, row in rows
            if wanted is None or name in wanted
        ]
        return sorted(found, key=lambda row: row.serial)

    # The ledger ------------------------------------------------------------------------------------------------------

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        """Write an entry on top of ``prev``: four round trips."""
        record = _encoded(Entry(entry, data).pack())
        while True:
            head, written_at = self._head()
            if head != prev:
                return head.index >= entry.index and self._id_at(entry.index, head) == entry.id
            self._put(f"entry/{_entry(entry)}", record)
            if prev != ORIGIN:
                self._put(f"ledger/{prev.index}", quoted(prev.id))
            condition = {"prevExist": False} if written_at is None else {"prevIndex": written_at}
            if self._swap("state/head", pack_link(entry).decode(), **condition):
                return True

    def read(self, index: int) -> bytes | None:
        """Return an entry's data: two round trips for the newest, three for an older one."""
        head, _ = self._head()
        entry_id = self._id_at(index, head) if 0 < index <= head.index else None
        if entry_id is None:
            return None
        found = self._peek(f"entry/{_entry(Link(index, entry_id))}")
        return None if found is None else READER.entry(_decoded(found[0])).data

    def shrink(self, index: int) -> None:
        """Let go of an entry's data, and keep its id: two round trips."""
        if (found := self._peek(f"ledger/{index}")) is not None:
            entry = Link(index, unquoted(found[0].encode()))
            self._swap(f"entry/{_entry(entry)}", _encoded(Entry(entry, TOMBSTONE).pack()), prevExist=True)

    def erase(self) -> bool:
        """Delete the job's directory, and that of all jobs if it was the only one."""
        with contextlib.suppress(etcd.EtcdKeyNotFound):
            self._ask(lambda client: client.delete(self._root, recursive=True, dir=True))
            with contextlib.suppress(RendezvousError):  # there are others
                self._ask(lambda client: client.delete(self._members.options.prefix, dir=True))
        return True

    def _head(self) -> tuple[Link, int | None]:
        """Return the newest entry's link, and when it was written."""
        found = self._peek("state/head")
        return (ORIGIN, None) if found is None else (READER.link(found[0].encode()), found[1])

    def _id_at(self, index: int, head: Link) -> str | None:
        if index == head.index:
            return head.id
        found = self._peek(f"ledger/{index}")
        return None if found is None else unquoted(found[0].encode())

    # Both ------------------------------------------------------------------------------------------------------------

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        """Block until something is new; told by a watch of one key, or of the two together."""
        deadline = time.monotonic() + timeout
        while True:
            found, index = self._state()
            head = READER.link(found["head"][0].encode()).index if "head" in found else 0
            version = found["roster"][1] if "roster" in found else 0
            now = Cursor(head, version if roster else cursor.roster)
            left = deadline - time.monotonic()
            if now != cursor or left <= 0:
                return now
            self._watch("state" if roster else "state/head", index + 1, min(left, LOOK_AGAIN))

    def _state(self) -> tuple[dict[str, Found], int]:
        """Return the head and the roster's mark, and the store's revision at which they were read."""
        try:
            state = self._ask(lambda client: client.read(f"{self._root}/state", recursive=True, quorum=True))
        except etcd.EtcdKeyNotFound as exc:
            return {}, int((exc.payload or {}).get("index", 0))
        return dict(_leaves(state)), int(state.etcd_index)

    def _watch(self, key: str, index: int, timeout: float) -> None:
        """Return once a key below ``key`` has changed at ``index`` or later, or might have, or after ``timeout`` s."""

        def watch(client: Any) -> None:
            with contextlib.suppress(etcd.EtcdWatchTimedOut, etcd.EtcdEventIndexCleared):
                client.watch(f"{self._root}/{key}", index=index, timeout=max(timeout, 0.01), recursive=True)

        self._client.call(watch, once=True)

    def _ask(self, ask: Any) -> Any:
        return self._client.call(ask)

    def _peek(self, key: str) -> Found | None:
        try:
            node = self._ask(lambda client: client.read(f"{self._root}/{key}", quorum=True))
        except etcd.EtcdKeyNotFound:
            return None
        return str(node.value), int(node.modifiedIndex)

    def _list(self, key: str) -> list[tuple[str, Found]]:
        try:
            return _leaves(self._ask(lambda client: client.read(f"{self._root}/{key}", recursive=True, quorum=True)))
        except etcd.EtcdKeyNotFound:
            return []

    def _put(self, key: str, value: str) -> None:
        self._ask(lambda client: client.write(f"{self._root}/{key}", value))

    def _swap(self, key: str, value: str, **condition: Any) -> bool:
        """Write a key if the condition holds; whether it did."""
        try:
            self._ask(lambda client: client.write(f"{self._root}/{key}", value, **condition))
        except (etcd.EtcdKeyNotFound, etcd.EtcdAlreadyExist, etcd.EtcdCompareFailed):
            return False
        return True

    def _delete(self, key: str) -> bool:
        try:
            self._ask(lambda client: client.delete(f"{self._root}/{key}"))
        except etcd.EtcdKeyNotFound:
            return False
        return True

    def _mark(self) -> None:
        self._put("state/roster", "-")

    def _renew(self) -> None:
        """Let the job's directory live for another week, or with etcd 3.5 for ever; make it if it is not there."""
        if time.monotonic() - self._renewed_at < RENEW:
            return

        def lengthened(client: etcd.Client) -> None:
            try:
                client.refresh(self._root, ttl=EXPIRY, dir=True)
            except etcd.EtcdException as exc:
                if _NO_DIRECTORY not in str(exc):
                    raise

        with contextlib.suppress(etcd.EtcdAlreadyExist):
            self._ask(lambda client: client.write(self._root, None, dir=True, prevExist=False))
        self._ask(lengthened)
        self._renewed_at = time.monotonic()


def _leaves(directory: Any) -> list[tuple[str, Found]]:
    """Return the keys in a directory, by the last part of their names."""
    return [
        (leaf.key.rpartition("/")[2], (str(leaf.value), int(leaf.modifiedIndex)))
        for leaf in directory.leaves
        if not leaf.dir
    ]


def _row(found: Found) -> Row:
    return READER.row(_decoded(found[0]))


def _entry(link: Link) -> str:
    return f"{link.index}{_name(link.id)}"


def _name(name: str) -> str:
    """Return a name as a part of a path, where dots, a leading underscore and percent signs have other meanings."""
    return "-" + quoted(name).replace("%", "=")


def _id(name: str) -> str:
    return unquoted(name[1:].replace("=", "%").encode())


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).decode()


def _decoded(text: str) -> bytes:
    """Return the record in a value; the value itself, which is none, if that is not base64."""
    try:
        return urlsafe_b64decode(text.encode())
    except ValueError:
        return text.encode()
