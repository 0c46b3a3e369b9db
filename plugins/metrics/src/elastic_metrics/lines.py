"""A file of JSON lines that holds whole lines only, each of them there as soon as it is written."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class LineFile:
    """One writer's file, written without a buffer.

    ``descriptor`` is open for writing at the file's end, which is ours alone; it is closed with this object.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size

    @classmethod
    def create(cls, path: Path) -> LineFile:
        """Return a new file, with the folders above it; raise OSError if it cannot be made, or is there already."""
        path.parent.mkdir(parents=True, exist_ok=True)
        return cls(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o640))

    def append(self, record: Mapping[str, object]) -> None:
        """Write one line. Where that fails, the file ends with the line before.

        Raises:
            OSError: The disk is full, or the file cannot be written for another reason.
        """
        line = encoded(record)
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        """Close it, for good."""
        os.close(self._descriptor)


def encoded(record: Mapping[str, object]) -> bytes:
    """Return one line of JSON, in ASCII; a value that JSON lacks, such as infinity, becomes text."""
    return json.dumps(_plain(record)).encode("ascii") + b"\n"


def _plain(value: object) -> Any:
    match value:
        case None | bool() | str() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return str(value)
