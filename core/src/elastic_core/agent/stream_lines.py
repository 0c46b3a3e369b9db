"""Shapes of a worker's stream: unchanged, in lines with a prefix, in whole lines, or with its last traceback folded.

A traceback that ends a stream of stderr is held back until that end, so that the console shows the cause first. If its
exception follows from the loss of a peer, one line stands for it; its file and the summary of the failure have the
rest. Any other traceback is shown as it is. A filter copies lines to another file.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from elastic_core.agent.console import write_all
from elastic_core.causes import Cause
from elastic_core.monitors import OutputReader

LONGEST_LINE = 1 << 22  # bytes of a line that wait for its end; a longer one is shown in pieces
HOLD_SECONDS = 2.0  # how long the interpreter may take to end after a traceback; then the traceback is shown
_MOST_HELD = 1 << 18  # bytes; more are shown
_FOLDED_CHARACTERS = 120  # of the exception's line
_BEGINS = re.compile(rb"^(\[[^\]\n]*\]:? ?)*Traceback \(most recent call last\):", re.MULTILINE)


class Shape:
    """The shape that a stream gets before it is shown. This class leaves it unchanged."""

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
        lines, self._rest = self._split(self._rest + data)
        if len(self._rest) >= LONGEST_LINE:
            lines += self.finish()
        self.due = self._clock() + self._patience if self._rest and self._patience is not None else math.inf
        return lines

    def finish(self) -> bytes:
        """Return what waits, as it is."""
        rest, self._rest, self.due = self._rest, b"", math.inf
        return rest

    def overdue(self) -> bytes:
        """Return what waits, as at the end."""
        return self.finish()

    def _split(self, data: bytes) -> tuple[bytes, bytes]:
        """Return what can be shown of ``data``, and the rest."""
        end = len(data) if data.rfind(b"\r") > data.rfind(b"\n") else data.rfind(b"\n") + 1
        return data[:end], data[end:]


class Lines(WholeLines):
    """Puts a prefix before each line that does not begin with it already, as torch's log lines and tracebacks do.

    A carriage return ends a line, since a progress bar would be held back until it is full otherwise.
    """

    def __init__(
        self, prefix: bytes, patience: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(patience, clock)
        self._prefix = prefix
        self._returned = False

    def feed(self, data: bytes) -> bytes:
        """Return all lines that ``data`` completes, with their prefix."""
        end = b"\n" if self._returned and data.startswith(b"\n") else b""  # of a line end that was cut in two
        self._returned = data.endswith(b"\r")
        return end + super().feed(data[len(end) :])

    def finish(self) -> bytes:
        """Return what waits, as a line."""
        rest = super().finish()
        return _prefixed(self._prefix, rest) + b"\n" if rest else b""

    def _split(self, data: bytes) -> tuple[bytes, bytes]:
        lines = data.splitlines(keepends=True)
        rest = lines.pop() if lines and not lines[-1].endswith((b"\n", b"\r")) else b""
        return b"".join(_prefixed(self._prefix, line) for line in lines), rest


class LogFile(OutputReader):
    """A file that keeps all bytes of a stream. A full disk ends the file, not its worker.

    Args:
        file: A descriptor; closed at the end of the stream.
        report: Called with a message, once, if the file cannot take all bytes.
    """

    def __init__(self, path: Path, file: int, report: Callable[[str], None]) -> None:
        self._path, self._file, self._report = path, file, report
        self._reported = False

    def feed(self, data: bytes) -> None:
        """Keep the bytes."""
        try:
            write_all(self._file, data)
        except OSError as exc:
            if not self._reported:
                self._reported = True
                self._report(f"{self._path} is not complete: {exc.strerror}; the worker goes on")

    def finish(self) -> None:
        """Close the file."""
        os.close(self._file)


class Filtered(OutputReader):
    """Copies the lines that contain one of ``needles`` to a file that all ranks of a round share.

    Args:
        needles: Texts; a line with any of them is copied.
        file: Its descriptor appends, so that lines of several ranks stay whole.
        prefix: Written before each line.
    """

    def __init__(self, needles: Sequence[str], file: LogFile, prefix: bytes) -> None:
        self._needles = [needle.encode() for needle in needles]
        self._file, self._prefix = file, prefix
        self._lines = Lines(b"")

    def feed(self, data: bytes) -> None:
        """Copy the lines that ``data`` completes and that match."""
        self._copy(self._lines.feed(data))

    def finish(self) -> None:
        """Copy the last line of the stream, which may lack a line break, and close the file."""
        self._copy(self._lines.finish())
        self._file.finish()

    def _copy(self, lines: bytes) -> None:
        found = [line for line in lines.splitlines(keepends=True) if any(needle in line for needle in self._needles)]
        if found:
            self._file.feed(b"".join(_prefixed(self._prefix, line) for line in found))


def _prefixed(prefix: bytes, line: bytes) -> bytes:
    return line if line.startswith(prefix) else prefix + line


class FoldedTracebacks(Shape):
    """A stream of stderr whose last traceback may be folded.

    Args:
        shape: What the stream becomes besides.
        path: The file that has all of the stream; None where none is kept.
        find_cause: Returns the cause that a text shows; None if it shows none.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        shape: Shape,
        path: Path | None,
        find_cause: Callable[[str], Cause | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shape, self._path, self._find_cause, self._clock = shape, path, find_cause, clock
        self._held, self._held_until = b"", math.inf

    @property
    def due(self) -> float:  # type: ignore[override]  # of both
        """When :meth:`overdue` must be called, by the monotonic clock."""
        return min(self._shape.due, self._held_until)

    def feed(self, data: bytes) -> bytes:
        """Return all that can be shown once ``data`` has come."""
        return self._hold(self._shape.feed(data))

    def overdue(self) -> bytes:
        """Return text whose wait is over: an unfinished line, or a traceback after which the process goes on."""
        shown = self._hold(self._shape.overdue() if self._shape.due <= self._clock() else b"")
        return shown + (self._release() if self._held_until <= self._clock() else b"")

    def finish(self) -> bytes:
        """Return what waits at the end of the stream, with one line for a traceback that follows from a lost peer."""
        shown = self._hold(self._shape.finish())
        if not (text := self._release()):
            return shown
        prefix, lines = text.partition(b"Traceback (")[0], text.count(b"\n")
        cause = self._find_cause(text[len(prefix) :].replace(b"\n" + prefix, b"\n").decode(errors="replace"))
        if cause is None or not cause.follows_peer:
            return shown + text
        where = f"{self._path} has it" if self._path is not None else "--log_dir keeps it"
        line = f"{cause.message[:_FOLDED_CHARACTERS]} (a traceback of {lines} lines, after the loss of a peer: {where})"
        return shown + prefix + line.encode() + b"\n"

    def _hold(self, data: bytes) -> bytes:
        """Return the part of ``data`` to show now; hold a traceback and all text after it."""
        if not self._held and b"Traceback (" in data and (begins := _BEGINS.search(data)) is not None:
            self._held, self._held_until = data[begins.start() :], self._clock() + HOLD_SECONDS
            return data[: begins.start()]
        if not self._held:
            return data
        self._held += data
        return self._release() if len(self._held) > _MOST_HELD else b""

    def _release(self) -> bytes:
        held, self._held, self._held_until = self._held, b"", math.inf
        return held
