"""The names of a job's keys, and the bytes that they hold. Nothing here talks to a store.

What one job keeps, below ``PREFIX/<job id>/``, all on one lease of a week that heartbeats renew::

    head            the newest entry: its index and its id; what an append compares, and a heartbeat reads
    state/newest    the same, a line break, and the entry's data; what followers watch, who so need not read it
    state/roster    rewritten with every enter, amend and remove; its revision is the roster's version
    ledger/7        entry 7: its id, a line break, its data; written once
    arrivals        rewritten for every serial that is handed out; how often that was, etcd counts
    row/<node>      a row: revision, serial, a line break, its value
    heartbeat/<node>     its heartbeat

API v2 changes one key at a time, and so has a little more (``backend_v2``).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous.backend import MAX_VALUE_BYTES, ORIGIN, Link, RosterRow

EXPIRY = 7 * 86400
"""Seconds after the last heartbeat at which a job's keys are gone."""
RENEW = 3600.0
"""Seconds between two renewals of that by one agent."""

_NUMBER = re.compile(rb"[0-9]{1,19}")
_HINT = "Something that is not part of this job has written to etcd; give the job a prefix (etcd_prefix) of its own."


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one job in API v3."""

    prefix: str
    run_id: str

    @property
    def head(self) -> bytes:
        """The newest entry's link."""
        return self._key("head")

    @property
    def newest(self) -> bytes:
        """The newest entry, whole."""
        return self._key("state", "newest")

    @property
    def roster(self) -> bytes:
        """The mark of the roster's version."""
        return self._key("state", "roster")

    @property
    def state(self) -> bytes:
        """The prefix of the keys of both."""
        return self._key("state", "")

    def ledger(self, index: int) -> bytes:
        """Return an entry."""
        return self._key("ledger", str(index))

    @property
    def arrivals(self) -> bytes:
        """The counter of serials."""
        return self._key("arrivals")

    @property
    def rows(self) -> bytes:
        """The prefix of the keys of all rows."""
        return self._key("row", "")

    def row(self, node_id: str) -> bytes:
        """Return a row."""
        return self._key("row", quoted(node_id))

    @property
    def heartbeats(self) -> bytes:
        """The prefix of the keys of all heartbeats."""
        return self._key("heartbeat", "")

    def heartbeat(self, node_id: str) -> bytes:
        """Return a row's heartbeat."""
        return self._key("heartbeat", quoted(node_id))

    @property
    def lease(self) -> int:
        """The number of the job's lease, a positive int64: made from the job's name, so that every node knows it."""
        digest = hashlib.sha256(self._key("lease")).digest()
        return int.from_bytes(digest[:8], "big") >> 1 or 1

    def _key(self, *parts: str) -> bytes:
        return "/".join((self.prefix, quoted(self.run_id), *parts)).encode()


@dataclass(frozen=True, slots=True)
class Row:
    """A roster row, as the store holds it; its heartbeat has a key of its own."""

    revision: int
    serial: int
    value: bytes

    def pack(self) -> bytes:
        """Its bytes, which sort by the revision.

        Raises:
            RendezvousStateError: The value is larger than a store must take.
        """
        return _pack(b"%019d %d" % (self.revision, self.serial), self.value)

    @classmethod
    def unpack(cls, record: bytes) -> Row:
        """Return the row that :meth:`pack` made these bytes from.

        Raises:
            RendezvousStateError: It did not.
        """
        header, value = _unpack(record)
        revision, _, serial = header.partition(b" ")
        if len(revision) != len(before(0)):  # it would not sort
            raise _no_record(record)
        return cls(number(revision), number(serial), value)

    def seen(self, node_id: str, heartbeat: bytes | None) -> RosterRow:
        """Return the row with its heartbeat, for the roster."""
        return RosterRow(node_id, self.serial, self.revision, self.value, number(heartbeat or b"0"))


def listed(node_id: str, read: Callable[[], Row], heartbeat: bytes | None) -> RosterRow:
    """Return what the roster has of a node whose row is read so, and has this heartbeat."""
    try:
        return read().seen(node_id, heartbeat)
    except RendezvousStateError as exc:
        return RosterRow.unreadable(node_id, str(exc))


def before(revision: int) -> bytes:
    """Return what the bytes of every row with an older revision sort before."""
    return b"%019d" % revision


def pack_entry(entry_id: str, data: bytes) -> bytes:
    """Return a ledger entry's bytes.

    Raises:
        RendezvousStateError: The data is larger than a store must take.
    """
    return _pack(quoted(entry_id).encode(), data)


def unpack_entry(record: bytes) -> tuple[str, bytes]:
    """Return the id and the data that :func:`pack_entry` made these bytes from.

    Raises:
        RendezvousStateError: It did not.
    """
    header, data = _unpack(record)
    return unquoted(header), data


def pack_link(link: Link) -> bytes:
    """Return a link's bytes."""
    return f"{link.index} {quoted(link.id)}".encode()


def unpack_link(record: bytes | None) -> Link:
    """Return the link that :func:`pack_link` made these bytes from; the origin for none.

    Raises:
        RendezvousStateError: It did not.
    """
    if record is None:
        return ORIGIN
    index, _, entry_id = record[:1024].partition(b" ")
    return Link(number(index), unquoted(entry_id))


def pack_newest(link: Link, data: bytes) -> bytes:
    """Return the bytes of the newest entry, with its link.

    Raises:
        RendezvousStateError: The data is larger than a store must take.
    """
    return _pack(pack_link(link), data)


def unpack_newest(record: bytes) -> tuple[Link, bytes]:
    """Return the link and the data that :func:`pack_newest` made these bytes from.

    Raises:
        RendezvousStateError: It did not.
    """
    header, data = _unpack(record)
    return unpack_link(header), data


def check_newest(head: bytes | None, newest: bytes | None) -> None:
    """Refuse a head beside another newest entry: they are written together, and who waits for the one would build on it
    and be refused by the other for ever.

    Raises:
        RendezvousStateError: They are of different entries, or one is not there.
    """
    links = unpack_link(head), ORIGIN if newest is None else unpack_newest(newest)[0]
    if links[0] != links[1]:
        first, second = (f"entry {link.index}" if link.index else "nothing" for link in links)
        raise RendezvousStateError(
            f"etcd holds {first} as the job's head, and {second} as its newest entry.", hint=_HINT
        )


def number(record: bytes) -> int:
    """Return a count, as the store spells it.

    Raises:
        RendezvousStateError: It is none.
    """
    if _NUMBER.fullmatch(record) is None:
        raise RendezvousStateError(f"etcd holds {record[:80]!r} for a number.", hint=_HINT)
    return int(record)


def if_number(record: bytes) -> int | None:
    """Return the number in a record; None if it is not one."""
    return int(record) if _NUMBER.fullmatch(record) else None


@lru_cache(4096)
def quoted(name: str) -> str:
    """Return a name as a part of a key."""
    return quote(name, safe="", errors="surrogateescape")


@lru_cache(4096)
def unquoted(name: bytes) -> str:
    """Return the name that :func:`quoted` made this from."""
    return unquote(name.decode(errors="replace"), errors="surrogateescape")


def _pack(header: bytes, value: bytes) -> bytes:
    if len(value) > MAX_VALUE_BYTES:
        raise RendezvousStateError(f"A value has {len(value)} bytes; at most {MAX_VALUE_BYTES} are allowed.")
    return header + b"\n" + value


def _unpack(record: bytes) -> tuple[bytes, bytes]:
    header, end, value = record.partition(b"\n")
    if not end or len(value) > MAX_VALUE_BYTES:
        raise _no_record(record)
    return header, value


def _no_record(record: bytes) -> RendezvousStateError:
    return RendezvousStateError(f"etcd holds {len(record)} bytes, {record[:80]!r}, for a record.", hint=_HINT)
