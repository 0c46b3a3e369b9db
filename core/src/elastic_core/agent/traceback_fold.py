"""Folds the tracebacks of ranks that have only lost a peer, so that the console shows the cause first.

A traceback that ends a stream of stderr is held back until that end. If its exception follows from the loss of a peer,
one line stands for it; its file and the summary of the failure have the rest. Any other traceback is shown as it is.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from pathlib import Path

from elastic_core.agent.failure_cause import printed_cause
from elastic_core.agent.stream_lines import Shape

HOLD_SECONDS = 2.0  # how long the interpreter may take to end after a traceback; then the traceback is shown
_MOST_HELD = 1 << 18  # bytes; more are shown
_FOLDED_CHARACTERS = 120  # of the exception's line
_BEGINS = re.compile(rb"^(\[[^\]\n]*\]:? ?)*Traceback \(most recent call last\):", re.MULTILINE)


class FoldedTracebacks(Shape):
    """A stream of stderr whose last traceback may be folded.

    Args:
        shape: What the stream becomes besides.
        path: The file that has all of the stream; None where none is kept.
        clock: Seconds, monotonic.
    """

    def __init__(self, shape: Shape, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._shape, self._path, self._clock = shape, path, clock
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
        cause = printed_cause(text[len(prefix) :].replace(b"\n" + prefix, b"\n").decode(errors="replace"))
        if not cause.follows_peer:
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
