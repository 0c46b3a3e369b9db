"""What ``ps`` and ``/proc`` show: no passwords, and a template that does not look like the workers that it forks.

Every user of a host may read the command lines of all its processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Mapping, Sequence

NAME, SERVICE = "elastic-warm", "elastic-service"

_PASSWORD = re.compile(r"(?is)((?<=://).*@)|(\b\w*(?:passw|pwd|secret)(?:(?!_file)\w)*=).+")


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
        shown = b"\0".join(os.fsencode(_hidden(os.fsdecode(argument))) for argument in self._line.split(b"\0"))
        if shown != self._line:
            self._write(self._name, shown)

    def show_template(self) -> None:
        """Be a template, to whoever looks."""
        self._write(NAME.encode(), b"elastic: template of " + self._line.replace(b"\0", b" ").rstrip(b" "))

    def show_service(self, entry: str) -> None:
        """Be a service, which calls a function; as much of that as there is room for."""
        self._write(SERVICE.encode(), f"elastic: service {entry}".encode())

    def show(self, argv: list[str]) -> None:
        """Be the process that this command starts, as far as its arguments have room where the template's were."""
        line = b"".join(os.fsencode(argument) + b"\0" for argument in argv)
        self._write(self._name, line if len(line) <= self._room else self._line)

    def show_environment(self, environment: Mapping[str, str]) -> None:
        """Have been started with these variables, or with the first of them, as many as there is room for."""
        shown = b""
        for name, value in environment.items():
            variable = os.fsencode(f"{name}={value}") + b"\0"
            if len(shown) + len(variable) > self._environ_room:
                break
            shown += variable
        ctypes.memmove(self._environ_at, shown.ljust(self._environ_room, b"\0"), self._environ_room)

    def _write(self, name: bytes, line: bytes) -> None:
        with open("/proc/self/comm", "wb") as file:
            file.write(name)
        if self._room:
            # The last byte stays 0: otherwise the kernel takes the line to go on where the environment begins.
            ctypes.memmove(self._at, line[: self._room - 1].ljust(self._room, b"\0"), self._room)


def hide_passwords(arguments: Sequence[str]) -> None:
    """Take the passwords among this process' arguments off what others are shown of it, where there is ``/proc``."""
    if [_hidden(argument) for argument in arguments] != list(arguments):
        with contextlib.suppress(OSError):
            Title().hide_passwords()


def _hidden(argument: str) -> str:
    """One without what a URL has before its last ``@``, or what follows ``password=`` and the like, be it too much."""
    return _PASSWORD.sub(lambda found: "***@" if found[1] else f"{found[2]}***", argument)
