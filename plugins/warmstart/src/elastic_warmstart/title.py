"""Titles of the fork server and its forks in ``ps`` and ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from elastic_core.host import Title, overwrite, without_passwords

NAME = b"elastic-warm"


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
