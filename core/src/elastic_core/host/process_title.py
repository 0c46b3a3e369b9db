"""Titles of processes in ``ps`` and ``/proc``: without passwords, and for a starter unlike those of workers."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence

NAME, SERVICE = "elastic-warm", "elastic-service"

_IN_PAIR = re.compile(r"(?is)(\b\w*(?:passw|pwd|secret)(?:(?!_file)\w)*=).+")
_IN_URL = re.compile(r"(?s)(?:(?<=://)|(?<=:)(?!//)).*@")


class Title:
    """The name and the command line of this process, and the environment of its start, as ``/proc`` shows them.

    The memory of that environment is overwritten, so every variable must have been set anew before.
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
        """Show the same command with ``***`` in place of its passwords."""
        self._show(_without_passwords(self._line))

    def show_starter(self, kind: str) -> None:
        """Show a starter of this kind, such as ``fork server``."""
        _rename(NAME.encode())
        line = _without_passwords(self._line)
        self._show(f"elastic: {kind} of ".encode() + line.replace(b"\0", b" ").rstrip(b" "))

    def show_service(self, entry: str) -> None:
        """Show a service and the function that it calls, as far as there is room."""
        _rename(SERVICE.encode())
        self._show(f"elastic: service {entry}".encode())

    def show(self, argv: list[str]) -> None:
        """Show the process of this command without passwords, as far as the starter's command line has room."""
        _rename(self._name)
        self._show(_without_passwords(b"".join(os.fsencode(argument) + b"\0" for argument in argv)))

    def show_environment(self, environment: Mapping[str, str]) -> None:
        """Show these variables as those of the start, or the first of them, as many as there is room for."""
        shown = b""
        for name, value in environment.items():
            variable = os.fsencode(f"{name}={value}") + b"\0"
            if len(shown) + len(variable) > self._environ_room:
                break
            shown += variable
        _write(self._environ_at, shown, self._environ_room)

    def _show(self, line: bytes) -> None:
        if self._room:
            # The last byte stays 0: otherwise the kernel shows the environment as a part of the line.
            _write(self._at, line[: self._room - 1], self._room)


def _rename(name: bytes) -> None:
    with open("/proc/self/comm", "wb") as file:
        file.write(name)


def _write(at: int, shown: bytes, room: int) -> None:
    import ctypes  # most commands do not need it

    ctypes.memmove(at, shown.ljust(room, b"\0"), room)


def hide_passwords(arguments: Sequence[str]) -> None:
    """Replace the passwords in the command line of this process that other users see, if there is ``/proc``."""
    if [_hidden(argument) for argument in arguments] != list(arguments):
        with contextlib.suppress(OSError, ImportError):
            Title().hide_passwords()


def _without_passwords(line: bytes) -> bytes:
    return b"\0".join(os.fsencode(_hidden(os.fsdecode(argument))) for argument in line.split(b"\0"))


def _hidden(argument: str) -> str:
    """Replace the text after ``password=`` and the like, and from ``://`` or ``user:`` to the last ``@``."""
    return _IN_URL.sub("***@", _IN_PAIR.sub(r"\1***", argument))
