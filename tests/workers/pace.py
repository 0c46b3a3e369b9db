"""The pace of a worker's steps, kept where it outlives the worker: a file for each process, which benchmarks read.

The file holds little-endian doubles of ``time.monotonic()``, in seconds: the latest step first, then one pair for each
silence, its begin and its end. The first pair's begin and end are both the first step.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SILENCE = 0.01
"""Seconds between two steps from which on they are worth a record."""
_NUMBER = struct.Struct("<d")
_PAIR = struct.Struct("<2d")


class PaceKeeper:
    """Writes the file of this process, ``FOLDER/LOCAL_RANK-PID``.

    Args:
        folder: Where all workers of a job keep theirs; it exists.
        clock: Seconds, the same clock for all processes.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        name = f"{os.environ['LOCAL_RANK']}-{os.getpid()}"
        self._file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        self._end = _NUMBER.size
        self._latest: float | None = None
        self._clock = clock

    def step(self) -> None:
        """A step is done; a few microseconds. What is written is there even if the process is killed right after."""
        now = self._clock()
        latest = now if self._latest is None else self._latest
        if self._latest is None or now - latest >= SILENCE:
            os.pwrite(self._file, _PAIR.pack(latest, now), self._end)
            self._end += _PAIR.size
        os.pwrite(self._file, _NUMBER.pack(now), 0)
        self._latest = now


@dataclass(frozen=True, slots=True)
class Pace:
    """The steps of one process. Times are seconds of ``time.monotonic()``."""

    local_rank: int
    pid: int
    first: float
    last: float
    silences: tuple[tuple[float, float], ...]


def read(file: Path) -> Pace | None:
    """Return the contents of a file of :class:`PaceKeeper`; None if that process has made no step."""
    content = file.read_bytes()
    whole = len(content) - (len(content) - _NUMBER.size) % _PAIR.size
    if whole < _NUMBER.size + _PAIR.size:
        return None
    local_rank, pid = map(int, file.name.split("-"))
    (last,) = _NUMBER.unpack_from(content)
    pairs = [(float(begin), float(end)) for begin, end in _PAIR.iter_unpack(content[_NUMBER.size : whole])]
    # A killed process may have written the pair but not yet the latest step.
    return Pace(local_rank, pid, pairs[0][1], max(last, pairs[-1][1]), tuple(pairs[1:]))
