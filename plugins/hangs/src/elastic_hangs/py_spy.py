"""Reads the Python stacks of a process from outside, with ``py-spy``, where that is installed.

It is asked only about processes that do not write their stacks themselves (``stacks.py``): programs that were not
prepared, or that the kernel lets run too seldom. ``--nonblocking`` reads their memory without pausing them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

LIMIT_SECONDS = 2.0  # for all processes together
MOST_PROCESSES = 16  # that are read at the same time, the others not at all
COMMAND = "py-spy"
_DENIED = "ermission"  # py-spy's error has this part of a word when it may not read another process's memory


def find_command() -> str | None:
    """Return the path of py-spy: beside this interpreter, or on PATH; None where it is not installed."""
    return shutil.which(os.path.join(os.path.dirname(sys.executable), COMMAND)) or shutil.which(COMMAND)


@dataclass(slots=True)
class PySpy:
    """Runs py-spy; ``say`` receives, once, why it cannot read a process. Any thread may use it, one at a time."""

    say: Callable[[str], None] = lambda _: None
    find: Callable[[], str | None] = find_command
    _refused: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def dump(self, pids: Iterable[int], seconds: float = LIMIT_SECONDS) -> dict[int, str]:
        """Return the stacks of the processes that it can read, in faulthandler's form. Blocks for ``seconds`` at most.

        A reader that takes longer is killed; that does not touch the process that it reads.
        """
        wanted = list(pids)[:MOST_PROCESSES]
        with self._lock:
            if not wanted or self._refused or (command := self.find()) is None:
                return {}
            deadline = time.monotonic() + seconds
            readers: dict[int, subprocess.Popen[str]] = {}
            found: dict[int, str] = {}
            try:
                for pid in wanted:
                    readers[pid] = subprocess.Popen(
                        [command, "dump", "--json", "--nonblocking", "--pid", str(pid)],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                        errors="replace",
                    )
                for pid, reader in readers.items():
                    with suppress(subprocess.TimeoutExpired, ValueError, TypeError, KeyError, AttributeError):
                        out, err = reader.communicate(timeout=max(0.0, deadline - time.monotonic()))
                        if reader.returncode == 0:
                            found[pid] = as_text(out, pid)
                        elif _DENIED in err:
                            self._refuse()
            except OSError:  # it cannot be run
                pass
            finally:
                for reader in readers.values():
                    reader.kill()
                    reader.communicate()
            return found

    def _refuse(self) -> None:
        if not self._refused:
            self._refused = True
            self.say(
                "py-spy may not read the workers' memory (it needs CAP_SYS_PTRACE, or kernel.yama.ptrace_scope=0), so "
                "of a rank that writes no stack itself only its state is shown"
            )


def as_text(dump: str, main: int) -> str:
    """Return a dump of ``py-spy dump --json`` as faulthandler writes one, the main thread as the current one.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: It is no such dump.
    """
    lines = []
    for thread in json.loads(dump):
        name = thread.get("thread_name") or "python"
        which = "Current thread" if thread["os_thread_id"] == main else "Thread"
        lines.append(f"{which} 0x{thread['thread_id']:x} [{name}] (most recent call first):")
        lines += [
            f'  File "{frame["filename"]}", line {frame["line"]} in {frame["name"]}' for frame in thread["frames"]
        ]
    return "\n".join([*lines, ""])
