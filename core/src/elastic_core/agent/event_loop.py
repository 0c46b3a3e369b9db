"""The agent's one queue: whatever happens, in whatever thread or process, arrives here as an event.

:meth:`Inbox.take` blocks until there is something, by one ``select`` over the warden's socket, the signal pipe, and
the pipe that other threads wake it by. No polling: the timeout is the next timer's.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import queue
import selectors
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any

LONGEST_SLEEP = 86400.0
"""Seconds; the kernel does not count to any number of milliseconds."""


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """The agent received a signal."""

    signum: int


class Inbox:
    """Events in the order in which they came.

    Make it on the main thread (signal handlers need that), and close it there.
    """

    def __init__(self, signals: Iterable[int] = (), now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._selector = selectors.DefaultSelector()
        self._posted: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, object]] = []
        self._order = itertools.count()
        self._wake_r, self._wake_w = _pipe()
        self._signal_r, self._signal_w = _pipe()
        self._selector.register(self._wake_r, selectors.EVENT_READ, self._drain_posted)
        self._selector.register(self._signal_r, selectors.EVENT_READ, self._drain_signals)
        self._old_wakeup = signal.set_wakeup_fd(self._signal_w, warn_on_full_buffer=False)
        self._old_handlers = {signum: signal.signal(signum, _ignore) for signum in signals}

    def watch(self, fileobj: Any, receive: Callable[[], Iterable[object]]) -> None:
        """Call ``receive`` when ``fileobj`` is readable; what it returns are events."""
        self._selector.register(fileobj, selectors.EVENT_READ, receive)

    def unwatch(self, fileobj: Any) -> None:
        """Watch ``fileobj`` no longer."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fileobj)

    def post(self, event: object) -> None:
        """Add an event; from any thread, also one that was left behind, when the inbox is closed already."""
        self._posted.put(event)
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_w, b"\0")

    def at(self, instant: float, event: object) -> None:
        """Deliver ``event`` at ``instant``, by the monotonic clock; from the loop's thread."""
        heapq.heappush(self._timers, (instant, next(self._order), event))

    def take(self) -> list[object]:
        """Block until something happened, and return it."""
        events: list[object] = []
        while not events:
            timeout = min(max(0.0, self._timers[0][0] - self._now()), LONGEST_SLEEP) if self._timers else None
            for key, _ in self._selector.select(timeout):
                events.extend(key.data())
            while self._timers and self._timers[0][0] <= self._now():
                events.append(heapq.heappop(self._timers)[2])
        return events

    def untaken(self) -> list[SignalReceived]:
        """Remove and return the signals that arrived since the last call of this or :meth:`take`. Never blocks."""
        return [SignalReceived(signum) for signum in _drain(self._signal_r) if signum in self._old_handlers]

    def close(self) -> None:
        """Give the signals back and close the pipes."""
        signal.set_wakeup_fd(self._old_wakeup)
        for signum, handler in self._old_handlers.items():
            signal.signal(signum, handler)
        self._selector.close()
        pipes = (self._wake_r, self._wake_w, self._signal_r, self._signal_w)
        self._wake_w = -1  # its number may be another file's soon
        for fd in pipes:
            os.close(fd)

    def _drain_posted(self) -> Iterable[object]:
        _drain(self._wake_r)
        while not self._posted.empty():
            yield self._posted.get_nowait()

    def _drain_signals(self) -> Iterable[object]:
        """Python writes every signal there that has a handler, be it somebody else's."""
        return self.untaken()


def _ignore(_signum: int, _frame: FrameType | None) -> None:
    """The wake-up descriptor has the signal already; a handler must exist for Python to write there."""


def _pipe() -> tuple[int, int]:
    ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    return ends[0], ends[1]


def _drain(fd: int) -> bytes:
    data = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(fd, 4096):
            data += part
    return data
