"""The records in which a backend keeps a job in a key-value store.

A record is a header, a line break, and a value::

    7 K3uB9\\n…                   ledger entry 7, with its id and its data; the header alone is its link
    0000000000000000005 3 n7\\n…  a roster row: revision, serial, node id, and the value

A backend packs with :class:`Entry` and :class:`Row`, and reads with :class:`RecordReader`, whose errors name the store.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous.backend import MAX_VALUE_BYTES, ORIGIN, Link, RosterRow, check_size

MAX_RECORD_BYTES = MAX_VALUE_BYTES + 4096  # most bytes of a record: a value, and the header before it

_NUMBER = re.compile(rb"[0-9]{1,19}")
_LINK = re.compile(rb"([0-9]{1,19}) ([!-~]*)")
_ROW = re.compile(rb"([0-9]{19}) ([0-9]{1,19}) ([!-~]*)")


class Entry(NamedTuple):
    """A ledger entry in a store."""

    link: Link
    data: bytes

    def pack(self) -> bytes:
        """Return the entry's record; raise RendezvousStateError if the data is too large."""
        check_size(f"Entry {self.link.index}", self.data)
        return pack_link(self.link) + b"\n" + self.data


class Row(NamedTuple):
    """A roster row in a store, without its heartbeat, which has a place of its own."""

    node_id: str
    serial: int
    revision: int
    value: bytes

    def pack(self) -> bytes:
        """Return the row's record, which sorts by revision; raise RendezvousStateError if the value is too large."""
        check_size(f"The row of {self.node_id}", self.value)
        return b"%b %d %b\n%b" % (pack_revision(self.revision), self.serial, quoted(self.node_id).encode(), self.value)


class RecordReader:
    """Reads records. A record that is malformed or too large raises a RendezvousStateError.

    ``store`` is the store as errors name it: the subject of "… holds". ``hint`` tells how to keep other writers out.
    """

    def __init__(self, store: str, hint: str) -> None:
        self._store, self._hint = store, hint

    def entry(self, record: bytes) -> Entry:
        """Return the entry that was packed into a record."""
        header, data = self._split(record, "an entry of the job")
        return Entry(self.link(header), data)

    def row(self, record: bytes) -> Row:
        """Return the row that was packed into a record."""
        header, value = self._split(record, "the row of a node")
        if (match := _ROW.fullmatch(header)) is None:
            raise self.error("the row of a node", record)
        return Row(unquoted(match[3]), int(match[2]), int(match[1]), value)

    def listed(self, node_id: str, record: bytes, heartbeat: bytes | None) -> RosterRow:
        """Return what :meth:`RendezvousBackend.roster` lists for this record, with the node's heartbeat (None: 0)."""
        try:
            row = self.row(record)
            return RosterRow(node_id, row.serial, row.revision, row.value, self.number(heartbeat or b"0"))
        except RendezvousStateError as exc:
            return RosterRow.unreadable(node_id, str(exc))

    def link(self, record: bytes | None) -> Link:
        """Return the link that :func:`pack_link` packed into a record; the origin for None."""
        if record is None:
            return ORIGIN
        if (match := _LINK.fullmatch(record)) is None:
            raise self.error("a link", record)
        return Link(int(match[1]), unquoted(match[2]))

    def number(self, record: bytes) -> int:
        """Return the count in a record."""
        if _NUMBER.fullmatch(record) is None:
            raise self.error("a number", record)
        return int(record)

    def error(self, kind: str, found: object) -> RendezvousStateError:
        """Return the error for what stands in the place of a record of this kind."""
        shown = f"{len(found)} bytes, {found[:80]!r}," if isinstance(found, bytes) else f"{found!r:.120}"
        return RendezvousStateError(f"{self._store} holds {shown} in the place of {kind}.", hint=self._hint)

    def _split(self, record: bytes, kind: str) -> tuple[bytes, bytes]:
        header, end, value = record.partition(b"\n")
        if not end or len(value) > MAX_VALUE_BYTES:
            raise self.error(kind, record)
        return header, value


def pack_link(link: Link) -> bytes:
    """Return the record of a link: the header of its entry."""
    return f"{link.index} {quoted(link.id)}".encode()


def pack_revision(revision: int) -> bytes:
    """Return the first bytes of the record of every row with this revision; records of older ones sort before."""
    return b"%019d" % revision


def is_number(record: bytes) -> bool:
    """Return True if a record is a count."""
    return _NUMBER.fullmatch(record) is not None


@lru_cache(4096)
def quoted(name: str) -> str:
    """Return a name as printable ASCII without a slash or a space, for a key or a header."""
    return quote(name, safe="", errors="surrogateescape")


@lru_cache(4096)
def unquoted(name: bytes) -> str:
    """Return the name that :func:`quoted` was given."""
    return unquote(name.decode(errors="replace"), errors="surrogateescape")
