"""A program on a terminal of its own: what it shows there, and what is typed."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

PATIENCE = 60.0
"""Seconds after which a test gives up on something; far more than anything takes."""


class Terminal:
    """A pseudo-terminal, and the program for which it is the controlling terminal, in the foreground.

    Args:
        command: The program and its arguments.
        cwd: Where it runs.
        env: Its environment.
        size: Rows and columns.
        stdout: Where its stdout goes; None for the terminal.
    """

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        size: tuple[int, int] = (24, 80),
        stdout: int | None = None,
    ) -> None:
        self._ours, theirs = os.openpty()
        self.shown = b""
        self.resize(*size)
        try:
            self.process = subprocess.Popen(
                ["setsid", "--ctty", *command],
                cwd=cwd,
                env=dict(env),
                stdin=theirs,
                stdout=theirs if stdout is None else stdout,
                stderr=theirs,
            )
        finally:
            os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hang_up()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def text(self) -> str:
        """Everything shown so far."""
        return self.shown.decode(errors="replace")

    def type(self, keys: bytes) -> None:
        """Press keys: ``b"\\x03"`` is Ctrl-C."""
        os.write(self._ours, keys)

    def resize(self, rows: int, columns: int) -> None:
        """Change the window's size."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def hang_up(self) -> None:
        """Close the terminal, as a lost connection does."""
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until ``pattern`` is shown."""
        end = time.monotonic() + PATIENCE
        while (found := re.search(pattern, self.text)) is None:
            assert self._read(end), f"{pattern!r} was not shown:\n{self.text}"
        return found

    def exit_code(self) -> int:
        """Read until no process holds the terminal any more, and wait for the program's end."""
        end = time.monotonic() + PATIENCE
        while self._read(end):
            pass
        return self.process.wait(max(0.0, end - time.monotonic()))

    def _read(self, end: float) -> bool:
        """Take in what is shown next; False at the end of all, or when the time is over."""
        if not select.select([self._ours], [], [], max(0.0, end - time.monotonic()))[0]:
            return False
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # EIO: no process has the other side open
            return False
        self.shown += data
        return bool(data)
