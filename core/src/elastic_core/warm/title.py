"""What ``ps`` and ``/proc`` show of a process: the template must not look like the workers that it forks."""

from __future__ import annotations

import ctypes
import os

NAME = "elastic-warm"


class Title:
    """The name and the command line of this process, which a fork can put back."""

    def __init__(self) -> None:
        with open("/proc/self/comm", "rb") as file:
            self._name = file.read().rstrip(b"\n")
        with open("/proc/self/cmdline", "rb") as file:
            self._line = file.read()
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        # proc(5): arg_start and arg_end, the 48th and 49th field; the third is the first after the name.
        self._at, end = int(fields[45]), int(fields[46])
        self._room = end - self._at if end - self._at == len(self._line) else 0

    def show_template(self) -> None:
        """Be a template, to whoever looks."""
        self._write(NAME.encode(), b"elastic: template of " + self._line.replace(b"\0", b" ").rstrip(b" "))

    def show(self, argv: list[str]) -> None:
        """Be the process that this command starts, as far as its arguments have room where the template's were."""
        line = b"".join(os.fsencode(argument) + b"\0" for argument in argv)
        self._write(self._name, line if len(line) <= self._room else self._line)

    def _write(self, name: bytes, line: bytes) -> None:
        with open("/proc/self/comm", "wb") as file:
            file.write(name)
        if self._room:
            # The last byte stays 0: otherwise the kernel takes the line to go on where the environment begins.
            ctypes.memmove(self._at, line[: self._room - 1].ljust(self._room, b"\0"), self._room)
