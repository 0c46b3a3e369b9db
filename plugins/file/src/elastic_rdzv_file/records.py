"""The encoding of the ``file`` backend: rows and heartbeats. Nothing here touches a file."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from elastic_core.rendezvous import RecordReader
from elastic_rdzv_file.disk import PLANTED

HEARTBEAT_SIZE = 16  # the bytes of a heartbeat

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
