"""The own process: its title in ``ps``, without passwords, and for a service its function; its allocator; its end."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
from collections.abc import Sequence

SERVICE = b"elastic-service"

_IN_PAIR = re.compile(r"(?is)(\b\w*(?:passw|pwd|secret)(?:(?!_file)\w)*=).+")
_IN_URL = re.compile(r"(?s)(?:(?<=://)|(?<=:)(?!//)).*@")
_M_ARENA_MAX = -8  # of glibc's malloc.h; other libraries take another number or none, and ignore this one


class Title:
    """The name and the command line of this process, as ``/proc`` shows them, and the place of its environment."""

    def __init__(self) -> None:
        with open("/proc/self/cmdline", "rb") as file:
            self.line = file.read()
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        # proc(5): arg_start, arg_end, env_start, env_end are the 48th field to the 51st; here the third comes first.
        self._at, end, self.environ_at, self.environ_end = map(int, fields[45:49])
        self._room = end - self._at if end - self._at == len(self.line) else 0

    def show(self, line: bytes, name: bytes = b"") -> None:
        """Show this command line, as far as there is room, and this name if one is given."""
        if name:
            with open("/proc/self/comm", "wb") as file:
                file.write(name)
        if self._room:
            # The last byte stays 0: otherwise the kernel shows the environment as a part of the line.
            overwrite(self._at, line[: self._room - 1], self._room)

    def show_service(self, entry: str) -> None:
        """Show a service and the function that it calls."""
        self.show(f"elastic: service {entry}".encode(), SERVICE)


def overwrite(at: int, shown: bytes, room: int) -> None:
    """Write bytes to ``room`` bytes of this process's memory, and zeros after them."""
    import ctypes  # most commands do not need it

    ctypes.memmove(at, shown.ljust(room, b"\0"), room)


def hide_passwords(arguments: Sequence[str]) -> None:
    """Replace the passwords in the command line of this process that other users see, if there is ``/proc``."""
    if [_hidden(argument) for argument in arguments] != list(arguments):
        with contextlib.suppress(OSError, ImportError):
            title = Title()
            title.show(without_passwords(title.line))


def without_passwords(line: bytes) -> bytes:
    """Return a command line, whose arguments end with zeros, with ``***`` in place of its passwords."""
    return b"\0".join(os.fsencode(_hidden(os.fsdecode(argument))) for argument in line.split(b"\0"))


def _hidden(argument: str) -> str:
    """Replace the text after ``password=`` and the like, and from ``://`` or ``user:`` to the last ``@``."""
    return _IN_URL.sub("***@", _IN_PAIR.sub(r"\1***", argument))


def use_one_arena() -> None:
    """Have the threads that start from now on share one arena.

    glibc gives each its own, whose free memory no other thread uses: 2 MB in an agent, which has about 15 threads and
    seldom runs two at once. Not for a process that runs other code too.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def end_before_threads(code: int) -> None:
    """End this process as ``sys.exit(code)`` would, if daemon threads could change its exit code. Main thread only.

    Python before 3.14 unwinds a daemon thread whose native call returns while the interpreter is finalized, and C++, as
    that of torch's TCPStore, aborts the process then (https://github.com/python/cpython/issues/87135).
    """
    import threading  # services do without it

    if sys.version_info < (3, 14) and any(thread.daemon for thread in threading.enumerate()):
        threading._shutdown()  # type: ignore[attr-defined]  # as Python does first
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError):  # else Python says that its output is lost
            if sys.stdout is not None and not sys.stdout.closed:
                sys.stdout.flush()
            os._exit(code)
