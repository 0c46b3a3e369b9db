"""The names of a job's keys, and the bytes that they hold. Nothing here talks to a store.

What one job keeps, below ``elastic/<job id>/``. Keys that readers name are never deleted, since a read of a missing key
blocks. Only the bells of old changes are: a waiter names the next bell, and looks again every :data:`BELL_PATIENCE`
seconds in case that bell was deleted before the waiter came to wait for it::

    ledger/7        entry 7: its id, a line break, its data; written once
    newest          the index of the newest entry, a line break, and what its own key holds; for who has just come, and
                    behind at times: the next entry's key tells
    arrivals        how many serials have been handed out
    node/<id>       the serial of this node's newest row
    row/3           the row of serial 3: revision and node id, a line break, its value
                    ('-' once it is removed, and '' while it is not written yet)
    heartbeat/3          its heartbeat
    changes         how often anything changed: the ledger or a row in the low 32 bits, a row in the 31 bits above
    change/12       set when the twelfth change is complete; what waiters wait for; the newest KEPT_BELLS exist
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous.backend import MAX_VALUE_BYTES

ROOT = "elastic/"
"""The prefix of the keys of all jobs."""
REMOVED = b"-"
UNWRITTEN = b""

ENTRY_APPENDED = 1
ROW_CHANGED = (1 << 32) + 1
"""The increment of ``changes`` for a change: one atomic addition moves both counters."""
ROW_CYCLE = 1 << 62
"""The amount to subtract from ``changes`` at that value: TCPStore counts in signed 64-bit integers, to 2^63."""
KEPT_BELLS = 1024
"""The bells of the newest changes, which exist. Older ones are deleted, or a store would grow by 175 bytes a change."""
BELL_PATIENCE = 10.0
"""Seconds after which a waiter reads ``changes`` again: it may have been stopped for more than KEPT_BELLS changes."""
_BELLS = 1 << 32
"""Bells are numbered modulo this."""

_NUMBER = re.compile(rb"0|[1-9][0-9]{0,18}")
_HINT = "Something that is not part of this job has written to the store. It has no password: keep its port private."


class Keys:
    """The keys of one job; the leader names those of all rows at every look.

    Attributes:
        prefix: What the names of all of them begin with.
        newest: The newest entry once more.
        arrivals: The counter of serials.
        changes: The counter of changes.
    """

    def __init__(self, run_id: str) -> None:
        self.prefix = prefix = f"{ROOT}{_quoted(run_id)}/"
        self.newest, self.arrivals, self.changes = f"{prefix}newest", f"{prefix}arrivals", f"{prefix}changes"

    def ledger(self, index: int) -> str:
        """Return an entry."""
        return f"{self.prefix}ledger/{index}"

    def node(self, node_id: str) -> str:
        """Return the serial of a node's newest row."""
        return f"{self.prefix}node/{_quoted(node_id)}"

    def row(self, serial: int) -> str:
        """Return a row."""
        return f"{self.prefix}row/{serial}"

    def heartbeat(self, serial: int) -> str:
        """Return a row's heartbeat."""
        return f"{self.prefix}heartbeat/{serial}"

    def change(self, number: int) -> str:
        """Return the bell of one change; the count of changes is modulo 2^32, and so are the names."""
        return f"{self.prefix}change/{number % _BELLS}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A ledger entry, as the store holds it."""

    id: str
    data: bytes

    def pack(self) -> bytes:
        """Its bytes.

        Raises:
            RendezvousStateError: The data is larger than a store must take.
        """
        return _pack(_quoted(self.id), self.data)

    @classmethod
    def unpack(cls, record: bytes) -> Entry:
        """Return the entry that :meth:`pack` made these bytes from.

        Raises:
            RendezvousStateError: It did not.
        """
        header, data = _unpack(record)
        return cls(_unquoted(header), data)


def pack_newest(index: int, record: bytes) -> bytes:
    """Return what :func:`unpack_newest` makes an entry's index and its record from."""
    return b"%d\n" % index + record


def unpack_newest(found: bytes) -> tuple[int, bytes]:
    """Return the index of the newest entry, and its record.

    Raises:
        RendezvousStateError: It is neither.
    """
    index, _, record = found.partition(b"\n")
    return number(index), record


@dataclass(frozen=True, slots=True)
class Row:
    """A roster row, as the store holds it; its serial is in its key, and its heartbeat has a key of its own."""

    node_id: str
    revision: int
    value: bytes

    def pack(self) -> bytes:
        """Its bytes.

        Raises:
            RendezvousStateError: The value is larger than a store must take.
        """
        return _pack(f"{self.revision} {_quoted(self.node_id)}", self.value)

    @classmethod
    def unpack(cls, record: bytes) -> Row:
        """Return the row that :meth:`pack` made these bytes from.

        Raises:
            RendezvousStateError: It did not.
        """
        header, value = _unpack(record)
        revision, space, node_id = header.partition(b" ")
        if not space:
            raise RendezvousStateError(f"The store holds {record[:80]!r} for a row.", hint=_HINT)
        return cls(_unquoted(node_id), number(revision), value)


def number(record: bytes) -> int:
    """Return a count, as the store spells it.

    Raises:
        RendezvousStateError: It is none.
    """
    if _NUMBER.fullmatch(record) is None:
        raise RendezvousStateError(f"The store holds {record[:80]!r} for a number.", hint=_HINT)
    return int(record)


def split_changes(count: int) -> tuple[int, int]:
    """Return the number of all changes, and the number of changes of rows."""
    return count & 0xFFFF_FFFF, count >> 32


def _pack(header: str, value: bytes) -> bytes:
    if len(value) > MAX_VALUE_BYTES:
        raise RendezvousStateError(f"A value has {len(value)} bytes; at most {MAX_VALUE_BYTES} are allowed.")
    return header.encode() + b"\n" + value


def _unpack(record: bytes) -> tuple[bytes, bytes]:
    header, end, value = record.partition(b"\n")
    if not end or len(value) > MAX_VALUE_BYTES:
        raise RendezvousStateError(f"The store holds {len(record)} bytes, {record[:80]!r}, for a record.", hint=_HINT)
    return header, value


@lru_cache(maxsize=1024)
def _quoted(name: str) -> str:
    return quote(name, safe="", errors="surrogateescape")


def _unquoted(name: bytes) -> str:
    return unquote(name.decode(errors="replace"), errors="surrogateescape")
