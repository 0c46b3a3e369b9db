"""Shapes of a worker's stream: unchanged, in lines with a prefix, or in whole lines; and the filter of its lines."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from elastic_core.agent.console import write_all

LONGEST_LINE = 1 << 22  # bytes of a line that wait for its end; a longer one is shown in pieces


class Shape:
    """What a stream becomes before it is shown. This class leaves it unchanged."""

    due = math.inf  # when :meth:`overdue` must be called, by the monotonic clock

    def feed(self, data: bytes) -> bytes:
        """Return all that can be shown once ``data`` has come; the rest waits for the end of its line."""
        return data

    def overdue(self) -> bytes:
        """Return what has waited for too long, and is shown as well."""
        return b""

    def finish(self) -> bytes:
        """Return what waits at the end of the stream."""
        return b""


class Lines(Shape):
    """Cuts a stream into whole lines and puts a prefix before each that does not begin with it already.

    (torch begins log lines and tracebacks with ``[rank3]:``, too.) A carriage return ends a line, since a progress bar
    would be held back until it is full otherwise.

    Args:
        prefix: Written before each line.
        patience: Seconds after which a line without an end is passed on, with an end; None to wait for its end.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, prefix: bytes, patience: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._prefix, self._patience, self._clock = prefix, patience, clock
        self._rest = b""
        self._returned = False

    def feed(self, data: bytes) -> bytes:
        """Return all lines that ``data`` completes, with their prefix."""
        shown = []
        if self._returned and data.startswith(b"\n"):  # the second half of a line end that was cut in two
            shown.append(b"\n")
            data = data[1:]
        lines = (self._rest + data).splitlines(keepends=True)
        self._rest = lines.pop() if lines and not lines[-1].endswith((b"\n", b"\r")) else b""
        self._returned = data.endswith(b"\r")
        shown += [_prefixed(self._prefix, line) for line in lines]
        if len(self._rest) >= LONGEST_LINE:
            shown.append(self.finish())
        self.due = self._clock() + self._patience if self._rest and self._patience is not None else math.inf
        return b"".join(shown)

    def finish(self) -> bytes:
        """Return what waits, as a line."""
        rest, self._rest, self.due = self._rest, b"", math.inf
        return _prefixed(self._prefix, rest) + b"\n" if rest else b""

    overdue = finish


class WholeLines(Shape):
    """Passes on a stream in whole lines, so that the lines of several ranks do not mix.

    What follows a carriage return is passed on as it comes: it is the newest state of a progress bar.

    Args:
        patience: Seconds after which a line without an end is passed on; None to wait for its end.
        clock: Seconds, monotonic.
    """

    def __init__(self, patience: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock = patience, clock
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return all lines that ``data`` completes."""
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        if b"\r" in data[end:] or len(data) - end >= LONGEST_LINE:
            end = len(data)
        self._rest = data[end:]
        self.due = self._clock() + self._patience if self._rest and self._patience is not None else math.inf
        return data[:end]

    def finish(self) -> bytes:
        """Return what waits, as it is."""
        rest, self._rest, self.due = self._rest, b"", math.inf
        return rest

    overdue = finish


class Filtered:
    """Lines that contain one of ``needles``, copied to a file that all ranks of a round share.

    Args:
        needles: Texts; a line with any of them is copied.
        file: A descriptor that appends, so that lines of several ranks stay whole; closed with this object.
    """

    def __init__(self, needles: Sequence[str], file: int, path: Path, prefix: bytes) -> None:
        self._needles = [needle.encode() for needle in needles]
        self._prefix = prefix
        self.path = path
        self._file = file
        self._lines = Lines(b"")

    def feed(self, data: bytes) -> None:
        """Copy the lines that ``data`` completes and that match.

        Raises:
            OSError: They cannot be written.
        """
        self._copy(self._lines.feed(data))

    def close(self) -> None:
        """Copy the last line of the stream, which may lack a line break, and close the file."""
        with contextlib.suppress(OSError):
            self._copy(self._lines.finish())
        os.close(self._file)

    def _copy(self, lines: bytes) -> None:
        found = [line for line in lines.splitlines(keepends=True) if any(needle in line for needle in self._needles)]
        if found:
            write_all(self._file, b"".join(_prefixed(self._prefix, line) for line in found))


def _prefixed(prefix: bytes, line: bytes) -> bytes:
    return line if line.startswith(prefix) else prefix + line
