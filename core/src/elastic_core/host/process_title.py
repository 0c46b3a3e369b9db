"""What ``ps`` and ``/proc`` show: no passwords, and a fork server that does not look like the workers that it forks.

Every user of a host may read the command lines of all its processes.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence

NAME, SERVICE = "elastic-warm", "elastic-service"

_IN_PAIR = re.compile(r"(?is)(\b\w*(?:passw|pwd|secret)(?:(?!_file)\w)*=).+")
_IN_URL = re.compile(r"(?s)(?:(?<=://)|(?<=:)(?!//)).*@")


class Title:
    """The name and the command line of this process, which a fork can put back, and the environment it started with.

    That is written over: nothing may point there any more, so every variable must have been set anew before.
    """

    def __init__(self) -> None:
        with open("/proc/self/comm", "rb") as file:
            self._name = file.read().rstrip(b"\n")
        with open("/proc/self/cmdline", "rb") as file:
            self._line = file.read()
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        # proc(5): arg_start, arg_end, env_start, env_end are the 48th field to the 51st; here the third comes first.
        self._at, end, self._environ_at, environ_end = map(int, fields[45:49])
        self._room = end - self._at if end - self._at == len(self._line) else 0
        self._environ_room = max(0, environ_end - self._environ_at)

    def hide_passwords(self) -> None:
        """Be the same command with ``***`` for its passwords, to whoever looks from now on."""
        self._show(_without_passwords(self._line))

    def show_fork_server(self) -> None:
        """Be a fork server, to whoever looks."""
        _rename(NAME.encode())
        line = _without_passwords(self._line)
        self._show(b"elastic: fork server of " + line.replace(b"\0", b" ").rstrip(b" "))

    def show_service(self, entry: str) -> None:
        """Be a service, which calls a function; as much of that as there is room for."""
        _rename(SERVICE.encode())
        self._show(f"elastic: service {entry}".encode())

    def show(self, argv: list[str]) -> None:
        """Be the process that this command starts, as far as it has room where the fork server's command line was.

        Passwords are not shown.
        """
        _rename(self._name)
        self._show(_without_passwords(b"".join(os.fsencode(argument) + b"\0" for argument in argv)))

    def show_environment(self, environment: Mapping[str, str]) -> None:
        """Have been started with these variables, or with the first of them, as many as there is room for."""
        shown = b""
        for name, value in environment.items():
            variable = os.fsencode(f"{name}={value}") + b"\0"
            if len(shown) + len(variable) > self._environ_room:
                break
            shown += variable
        _write(self._environ_at, shown, self._environ_room)

    def _show(self, line: bytes) -> None:
        if self._room:
            # The last byte stays 0: otherwise the kernel takes the line to go on where the environment begins.
            _write(self._at, line[: self._room - 1], self._room)


def _rename(name: bytes) -> None:
    with open("/proc/self/comm", "wb") as file:
        file.write(name)


def _write(at: int, shown: bytes, room: int) -> None:
    import ctypes  # a command that shows what it was given does without

    ctypes.memmove(at, shown.ljust(room, b"\0"), room)


def hide_passwords(arguments: Sequence[str]) -> None:
    """Take the passwords among this process' arguments off what others are shown of it, where there is ``/proc``."""
    if [_hidden(argument) for argument in arguments] != list(arguments):
        with contextlib.suppress(OSError, ImportError):
            Title().hide_passwords()


def _without_passwords(line: bytes) -> bytes:
    return b"\0".join(os.fsencode(_hidden(os.fsdecode(argument))) for argument in line.split(b"\0"))


def _hidden(argument: str) -> str:
    """One without what follows ``password=`` and the like, or ``://`` or ``user:`` and goes on to the last ``@``."""
    return _IN_URL.sub("***@", _IN_PAIR.sub(r"\1***", argument))
