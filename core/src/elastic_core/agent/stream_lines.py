"""Shapes of a worker's stream, in whole lines or in lines with a prefix, and the file that keeps a stream."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from elastic_core.agent.console import write_all
from elastic_core.monitors import OutputReader, Shape

LONGEST_LINE = 1 << 22  # bytes of a line that wait for its end; a longer one is shown in pieces


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


def _prefixed(prefix: bytes, line: bytes) -> bytes:
    return line if line.startswith(prefix) else prefix + line
