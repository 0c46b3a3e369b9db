"""The agent's event loop: events of all threads, processes, signals and timers arrive in one queue.

An event is an object, or a function that the owner of the loop calls without arguments.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import queue
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any

SELECT_MAX_SECONDS = 86400.0  # the kernel limits the timeout of one ``select``


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """The agent received a signal."""

    signum: int


class EventLoop:
    """A queue of events, in the order in which they came.

    Make and close it on the main thread: it sets signal handlers.
    """

    def __init__(self, signals: Iterable[int] = (), now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.late_signals: list[int] = []
        self._selector = selectors.DefaultSelector()
        self._posted: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, object]] = []  # instant, order, event
        self._order = itertools.count()
        self._closing = threading.Lock()
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signal_r, self._signal_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
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
        """Add an event. Any thread may call this, even after :meth:`close`."""
        self._posted.put(event)
        with self._closing, contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_w, b"\0")

    def at(self, instant: float, event: object) -> None:
        """Deliver ``event`` at ``instant`` of the monotonic clock. Only the loop's thread may call this."""
        heapq.heappush(self._timers, (instant, next(self._order), event))

    def later(self, seconds: float, event: object) -> None:
        """Deliver ``event`` after so many seconds, as :meth:`at`."""
        self.at(self._now() + seconds, event)

    def take(self) -> list[object]:
        """Block until there are events, in a ``select`` that ends at the next timer at the latest, and return them."""
        events: list[object] = []
        while not events:
            timeout = min(max(0.0, self._timers[0][0] - self._now()), SELECT_MAX_SECONDS) if self._timers else None
            for key, _ in self._selector.select(timeout):
                events.extend(key.data())
            now = self._now()
            while self._timers and self._timers[0][0] <= now:
                events.append(heapq.heappop(self._timers)[-1])
        return events

    def untaken_signals(self) -> list[int]:
        """Remove and return the signals that arrived since the last call of this method or :meth:`take`."""
        return [signum for signum in _drain(self._signal_r) if signum in self._old_handlers]

    def close(self) -> None:
        """Restore the signal handlers and close the pipes; :attr:`late_signals` keeps those that nothing has taken."""
        for signum, handler in self._old_handlers.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        self.late_signals = self.untaken_signals()
        self._selector.close()
        pipes = (self._wake_r, self._wake_w, self._signal_r, self._signal_w)
        with self._closing:
            self._wake_w = -1  # another file may soon have its number
        for fd in pipes:
            os.close(fd)

    def _drain_posted(self) -> Iterable[object]:
        _drain(self._wake_r)
        while not self._posted.empty():
            yield self._posted.get_nowait()

    def _drain_signals(self) -> Iterable[object]:
        """Python writes every signal there that has a handler, also a handler that is not the loop's."""
        return map(SignalReceived, self.untaken_signals())


def _ignore(_signum: int, _frame: FrameType | None) -> None:
    """Python writes a signal to the wake-up descriptor only if the signal has a handler."""


def _drain(fd: int) -> bytes:
    data = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(fd, 4096):
            data += part
    return data
