"""Pseudo-terminals for workers, so that a program shows on a terminal what it would show there without an agent."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import termios

_SIZE = 8  # bytes of the kernel's ``struct winsize``


def window_size(terminal: int) -> bytes | None:
    """Return the size of a terminal's window, as the kernel has it; None if the descriptor is no terminal."""
    try:
        return fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(_SIZE))
    except OSError:
        return None


def resize(terminal: int, size: bytes) -> None:
    """Give a pseudo-terminal this window size."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


def open_like(terminal: int) -> tuple[int, int] | None:
    """Return a pseudo-terminal of the same window size as ``terminal``: our end, which does not block, and a worker's.

    The kernel changes no byte on the way and acts on none. It controls no session, so it sends no signals.

    Returns:
        None if ``terminal`` is no terminal, or no pseudo-terminal is left.

    Raises:
        OSError: No descriptor is left.
    """
    if (size := window_size(terminal)) is None or not os.isatty(terminal):
        return None
    try:
        ours, theirs = os.openpty()
    except OSError as exc:
        if exc.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None
    try:
        raw = termios.tcgetattr(theirs)
        raw[0] = raw[1] = raw[3] = 0  # input, output and local flags
        termios.tcsetattr(theirs, termios.TCSANOW, raw)
        os.set_blocking(ours, False)
    except BaseException:
        os.close(ours)
        os.close(theirs)
        raise
    resize(ours, size)
    return ours, theirs
