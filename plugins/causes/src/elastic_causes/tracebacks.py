"""Folds tracebacks that follow from the loss of a peer, so that a console of several workers shows the cause first."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from pathlib import Path

from elastic_causes.find import printed_cause, telling_lines
from elastic_core.causes import DETAIL_MAX_CHARACTERS
from elastic_core.monitors import Shape

HOLD_SECONDS = 2.0  # how long the interpreter may take to end after a traceback; then the traceback is shown
_MOST_HELD = 1 << 18  # bytes; more are shown
_FOLDED_CHARACTERS = 120  # of the exception's line
_BEGINS = re.compile(rb"^(\[[^\]\n]*\]:? ?)*Traceback \(most recent call last\):", re.MULTILINE)


class FoldedTracebacks(Shape):
    """A stream with a worker's stderr in whole lines. A traceback is held back until the stream ends.

    If its exception follows from the loss of a peer, one line stands for it; the log and the summary of the failure
    have the rest. Any other traceback is shown as it is. The cause of one takes about a millisecond to find, once for
    each stream.

    Args:
        path: The file that has all of the stream; None where none is kept.
        clock: Seconds, monotonic.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock, self._held = path, clock, b""

    def feed(self, data: bytes) -> bytes:
        """Return the part of ``data`` to show now; hold a traceback and all text after it."""
        if self._held:
            self._held += data
            return self.overdue() if len(self._held) > _MOST_HELD else b""
        if b"Traceback (" not in data or (begins := _BEGINS.search(data)) is None:
            return data
        self._held, self.due = data[begins.start() :], self._clock() + HOLD_SECONDS
        return data[: begins.start()]

    def overdue(self) -> bytes:
        """Return a traceback after which the process goes on."""
        held, self._held, self.due = self._held, b"", math.inf
        return held

    def finish(self) -> bytes:
        """Return the held text, or one line for a traceback that follows from the loss of a peer."""
        if not (text := self.overdue()):
            return b""
        prefix, lines = text.partition(b"Traceback (")[0], text.count(b"\n")
        printed = text[len(prefix) :].replace(b"\n" + prefix, b"\n").decode(errors="replace")
        cause = printed_cause(telling_lines(printed, DETAIL_MAX_CHARACTERS))
        if not cause.follows_peer:
            return text
        where = f"{self._path} has it" if self._path is not None else "--log_dir keeps it"
        line = f"{cause.message[:_FOLDED_CHARACTERS]} (a traceback of {lines} lines, after the loss of a peer: {where})"
        return prefix + line.encode() + b"\n"
