"""The way to a console that may be slow, stuck or gone: a bounded buffer and a thread, the only one to wait for it."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable

CAPACITY = 8 << 20
"""Bytes that may wait for a console. Beyond that whole chunks are dropped, until half of it is free again."""


class Console:
    """One descriptor to which workers' output is written, in order.

    Args:
        fd: Where to write; it stays the caller's.
        report: Called from the console's thread, once, if the console is gone.
        capacity: Bytes that may wait.
    """

    def __init__(self, fd: int, report: Callable[[str], None], capacity: int = CAPACITY) -> None:
        self._fd, self._report, self._capacity = fd, report, capacity
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._dropping = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"elastic-console-{fd}", daemon=True)
        self._thread.start()

    def write(self, chunk: bytes) -> None:
        """Pass a chunk on, or drop it if too much waits already. Never waits itself; from any thread."""
        with self._changed:
            limit = self._capacity // 2 if self._dropping else self._capacity
            self._dropping = self._size + len(chunk) > limit
            if self._closed or self._dropping:
                self._dropped += len(chunk)
                return
            self._put(self._notice() + chunk)

    def close(self, timeout: float) -> None:
        """Write what waits, for ``timeout`` seconds at most; a console that is stuck beyond that keeps its thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while (chunk := self._next()) is not None:
            try:
                write_all(self._fd, chunk)
            except OSError as exc:
                self._report(f"the console is gone ({exc.strerror}): workers' output is no longer shown there")
                self._give_up()
                return
            with self._changed:
                self._size -= len(chunk)

    def _next(self) -> bytes | None:
        """The next chunk, as soon as there is one; None at the end."""
        with self._changed:
            while not self._waiting:
                if notice := self._notice():  # it flows again, and no other chunk may ever come to bring this
                    self._put(notice)
                elif self._closed:
                    return None
                else:
                    self._changed.wait()
            return self._waiting.popleft()

    def _put(self, chunk: bytes) -> None:
        self._waiting.append(chunk)
        self._size += len(chunk)
        self._changed.notify()

    def _notice(self) -> bytes:
        """What was dropped since the last notice, in words; it stands where that would have stood."""
        if not self._dropped:
            return b""
        dropped, self._dropped = self._dropped, 0
        return f"\n[elastic] the console was too slow: {dropped:,} bytes of workers' output are missing here\n".encode()

    def _give_up(self) -> None:
        with self._changed:
            self._closed = True
            self._waiting.clear()


def write_all(fd: int, data: bytes) -> None:
    """Write everything, however often that takes and whether or not somebody made the descriptor non-blocking.

    Raises:
        OSError: It could not be written.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()
