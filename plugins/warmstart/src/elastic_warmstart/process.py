"""The fork server's own process: its titles, and those of its forks, and large pages, which make forks cheap.

A fork copies the table of all written pages, so a few large ones are better. Forking an interpreter that has imported
torch takes 4 ms where its 146 MB lie in pages of 4 kB, and 1 ms where they lie in pages of 2 MB (Linux 6.18). The
kernel splits them again where a worker writes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence

from elastic_core.host import Title, overwrite, without_passwords

NAME = b"elastic-warm"
_MADV_COLLAPSE = 25  # Linux 6.1; older kernels refuse it, which does no harm
LARGE = 2 << 20


class ForkTitle(Title):
    """The name and the command line of this process, and the environment of its start, as ``/proc`` shows them.

    The memory of that environment is overwritten, so every variable must have been set anew before.
    """

    def __init__(self) -> None:
        super().__init__()
        with open("/proc/self/comm", "rb") as file:
            self._name = file.read().rstrip(b"\n")

    def show_server(self) -> None:
        """Show that this process is a fork server, and its command."""
        self.show(b"elastic: fork server of " + without_passwords(self.line).replace(b"\0", b" ").rstrip(b" "), NAME)

    def show_worker(self, argv: Sequence[str]) -> None:
        """Show the process of this command without passwords, as far as the fork server's command line has room."""
        self.show(without_passwords(b"".join(os.fsencode(argument) + b"\0" for argument in argv)), self._name)

    def show_environment(self, environment: Mapping[str, str]) -> None:
        """Show these variables as those of the start, or the first of them, as many as there is room for."""
        shown, room = b"", max(0, self.environ_end - self.environ_at)
        for name, value in environment.items():
            variable = os.fsencode(f"{name}={value}") + b"\0"
            if len(shown) + len(variable) > room:
                break
            shown += variable
        overwrite(self.environ_at, shown, room)


def collapse(interrupted: Callable[[], bool]) -> bool:
    """Put this process's memory into large pages, piece by piece, until interrupted; whether all of it was tried.

    Memory that is in large pages already takes next to no time.
    """
    libc = ctypes.CDLL(None)
    for start, end in _written():
        for piece in range(start, end, LARGE):
            if interrupted():
                return False
            libc.madvise(ctypes.c_void_p(piece), ctypes.c_size_t(LARGE), _MADV_COLLAPSE)
    return True


def _written() -> list[tuple[int, int]]:
    """Return the bounds of private, writable memory into which whole large pages fit."""
    places = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            bounds, flags, *_ = line.split()
            start, end = (int(number, 16) for number in bounds.split("-"))
            start, end = -(-start // LARGE) * LARGE, end // LARGE * LARGE
            if flags[1] == "w" and flags[3] == "p" and start < end:
                places.append((start, end))
    return places
