"""Writes to a console that may be slow, stuck or gone: through a bounded buffer and a thread, or directly.

A worker may get a pseudo-terminal, so that its program prints as it does on a terminal without an agent.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import termios
import threading
from collections import deque
from collections.abc import Callable

CAPACITY = 8 << 20
"""Bytes that may wait for a console. Beyond that, whole chunks are dropped until half of the buffer is free again."""
_SIZE = 8  # bytes of the kernel's ``struct winsize``


class DirectConsole:
    """A descriptor to which workers' output is written at once: the writer waits, and nothing is dropped.

    The caller closes ``fd``. ``report`` is called once, if the console is gone.
    """

    def __init__(self, fd: int, report: Callable[[str], None]) -> None:
        self._fd, self._report = fd, report
        self._open_line_of: int | None = None  # the rank that has shown the beginning of a line without its end
        self._gone: int | None = None  # the number of the error with which the console went

    def write(self, chunk: bytes, rank: int) -> bool:
        """Write a chunk of a local rank; return False if the console is gone and the worker should notice.

        A terminal that has hung up (EIO) is no reason to fail: after ``trap '' HUP`` a job goes on without it. Only one
        thread may call this.
        """
        if self._gone is None:
            self._show(self._separated(chunk, rank))
        return self._gone in (None, errno.EIO)

    def _show(self, chunk: bytes) -> None:
        try:
            write_all(self._fd, chunk)
        except OSError as exc:
            self._gone = exc.errno or errno.EIO
            self._report(f"the console is gone ({exc.strerror}): workers' output is no longer shown there")

    def _separated(self, chunk: bytes, rank: int) -> bytes:
        """Return what a rank shows next, after a line break if the open line is another rank's.

        A chunk that begins with a carriage return, as a progress bar's does, is shown over that line.
        """
        ours = self._open_line_of in (None, rank) or chunk.startswith((b"\r", b"\n"))
        self._open_line_of = None if chunk.endswith(b"\n") else rank
        return chunk if ours else b"\n" + chunk


class Console(DirectConsole):
    """A writer of workers' output to one descriptor, in order, in a separate thread.

    Any thread may call it, no writer waits, and output is dropped where more than ``capacity`` bytes wait.
    ``report`` is called from the console's thread.
    """

    def __init__(self, fd: int, report: Callable[[str], None], capacity: int = CAPACITY) -> None:
        super().__init__(fd, report)
        self._capacity = capacity
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._dropping = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"elastic-console-{fd}", daemon=True)
        self._thread.start()

    def write(self, chunk: bytes, rank: int = 0) -> bool:
        """Queue a chunk of a local rank, or drop it if too much waits already. Any thread may call this."""
        with self._changed:
            limit = self._capacity // 2 if self._dropping else self._capacity
            self._dropping = self._size + len(chunk) > limit
            if self._closed or self._dropping:
                self._dropped += len(chunk)
            else:
                self._put(self._notice() + self._separated(chunk, rank))
            return True  # a worker goes on without a console

    def close(self, timeout: float) -> None:
        """Write the chunks that wait, for ``timeout`` seconds at most; after that, the thread is abandoned."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while self._gone is None and (chunk := self._next()) is not None:
            self._show(chunk)
            with self._changed:
                self._size -= len(chunk)
        with self._changed:
            self._closed = True
            self._waiting.clear()

    def _next(self) -> bytes | None:
        """Wait for the next chunk and return it; None at the end."""
        with self._changed:
            while not self._waiting:
                if notice := self._notice():  # no other chunk may ever come that would bring it
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
        """Return a line that names the output dropped since the last such line, and takes its place."""
        if not self._dropped:
            return b""
        dropped, self._dropped = self._dropped, 0
        return f"\n[elastic] the console was too slow: {dropped:,} bytes of workers' output are missing here\n".encode()


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``, also if the descriptor is non-blocking; raise OSError if it could not be written."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()


def window_size(terminal: int) -> bytes | None:
    """Return the size of a terminal's window, as the kernel has it; None if the descriptor is no terminal."""
    try:
        return fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(_SIZE))
    except OSError:
        return None


def resize_terminal(terminal: int, size: bytes) -> None:
    """Give a pseudo-terminal this window size."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


def open_terminal_like(terminal: int) -> tuple[int, int] | None:
    """Return a pseudo-terminal of the same window size as ``terminal``: our end and a worker's.

    Return None if ``terminal`` is no terminal, or no pseudo-terminal is left; raise OSError if no descriptor is left.
    The kernel changes no byte on the way and acts on none. It controls no session, so it sends no signals.
    """
    if (size := window_size(terminal)) is None or not os.isatty(terminal):
        return None
    try:
        ours, theirs = os.openpty()
    except OSError as exc:
        if exc.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None
    raw = termios.tcgetattr(theirs)
    raw[0] = raw[1] = raw[3] = 0  # input, output and local flags
    termios.tcsetattr(theirs, termios.TCSANOW, raw)
    resize_terminal(ours, size)
    return ours, theirs
