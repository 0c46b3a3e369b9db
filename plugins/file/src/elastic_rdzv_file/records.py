"""The encoding of the ``file`` backend: rows, heartbeats, values. Nothing here touches a file."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous.backend import MAX_VALUE_BYTES
from elastic_rdzv_file.disk import PLANTED

RECORD_LIMIT = MAX_VALUE_BYTES + 4096
"""The most bytes of a record: its value, and the line before it."""
HEARTBEAT_SIZE = 16
"""The bytes of a heartbeat."""

_KEY = re.compile(r"[0-9]{8,}-(.+)")
_MARK = re.compile(r"([0-9]{8,})-(.+)\.([0-9]+)")
_HEARTBEAT = struct.Struct(">QQ")
_ONES = 2**64 - 1


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A row, as the name of its file in ``roster/`` tells it."""

    serial: int
    name: str
    """The node id, as :func:`~elastic_rdzv_file.disk.safe_name` spells it."""
    revision: int

    @property
    def key(self) -> str:
        """The part that stays the same while the revision grows."""
        return f"{self.serial:08d}-{self.name}"

    def __str__(self) -> str:
        return f"{self.key}.{self.revision}"


def marks_in(names: Iterable[str]) -> dict[str, Mark]:
    """Every row's newest mark among the names of files, by the row's name. Files of others are passed over."""
    marks: dict[str, Mark] = {}
    for text in names:
        if (match := _MARK.fullmatch(text)) is not None:
            mark = Mark(int(match[1]), match[2], int(match[3]))
            marks[mark.name] = max(mark, marks.get(mark.name, mark))
    return marks


def rows_in(keys: Iterable[str]) -> set[str]:
    """Return the names of rows among the keys of marks (:attr:`Mark.key`). Files of others are passed over."""
    return {match[1] for key in keys if (match := _KEY.fullmatch(key)) is not None}


def pack_record(what: str, name: str, value: bytes) -> bytes:
    """Return a name on a line of its own, and the value.

    Raises:
        RendezvousStateError: The value is larger than a store must take.
    """
    if len(value) > MAX_VALUE_BYTES:
        raise RendezvousStateError(f"{what} has {len(value)} bytes; at most {MAX_VALUE_BYTES} are allowed.")
    return quote(name, errors="surrogateescape").encode() + b"\n" + value


def unpack_record(content: bytes, path: str) -> tuple[str, bytes]:
    """Return the name and the value of the record that ``path`` holds.

    Raises:
        RendezvousStateError: It is no record.
    """
    name, end, value = content.partition(b"\n")
    if not end or not name.isascii() or len(value) > MAX_VALUE_BYTES:
        raise RendezvousStateError(f"{path!r}, of {len(content)} bytes, is no record of ours.", hint=PLANTED)
    return unquote(name.decode("ascii"), errors="surrogateescape"), value


def pack_heartbeat(count: int) -> bytes:
    """Return the count and its complement, so that a torn read is seen to be one."""
    return _HEARTBEAT.pack(count, count ^ _ONES)


def unpack_heartbeat(content: bytes) -> int | None:
    """Return the count; None when the read was torn, and is to be repeated."""
    if len(content) != HEARTBEAT_SIZE:
        return None
    count, complement = _HEARTBEAT.unpack(content)
    return int(count) if count ^ complement == _ONES else None
