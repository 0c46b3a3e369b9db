"""On SIGQUIT an agent writes to stderr what it does and waits for, with the Python stacks of its threads, and goes on.

:mod:`faulthandler` writes the stacks from the signal's handler into a pipe that never blocks. A thread at the other end
adds the state, and copies all of it to stderr. So the dump comes even if a call does not return, and a stuck console
does not stop the agent.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import fcntl
import os
import re
import select
import signal
import threading
from collections.abc import Callable, Collection

from elastic_core.agent.console import write_all
from elastic_core.host.terminal import printable

SIGNAL = signal.SIGQUIT
QUIET_SECONDS = 0.1  # a dump of the stacks is complete when nothing more of it comes for so long
ROOM_BYTES = 1 << 18  # of the pipe; stacks that do not fit there are cut off
_END = b"\0"
_THREAD = re.compile(r"^(Thread|Current thread) (0x[0-9a-f]+)")


class StateDump:
    """Writes the state on each SIGQUIT, until it is closed. Main thread only.

    Nothing is written if the node leaves on SIGQUIT, or if the program that runs the agent has a handler for it.

    Args:
        handled: The signals on which the node leaves.
        describe: Returns what the agent does; called on another thread.
        fd: Where to write; the caller closes it.
    """

    def __init__(self, handled: Collection[int], describe: Callable[[], str], fd: int = 2) -> None:
        self._fd, self._describe = fd, describe
        self._pipe: tuple[int, int] | None = None
        self._started = False
        self._before = signal.getsignal(SIGNAL)
        if SIGNAL in handled or self._before not in (signal.SIG_DFL, signal.SIG_IGN):
            return
        self._pipe = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # more than this user may have
            fcntl.fcntl(self._pipe[1], fcntl.F_SETPIPE_SZ, ROOM_BYTES)
        os.set_blocking(self._pipe[1], False)
        signal.signal(SIGNAL, lambda *_: self._start())
        faulthandler.register(SIGNAL, file=self._pipe[1], all_threads=True, chain=True)

    def show(self, describe: Callable[[], str]) -> None:
        """Write what ``describe`` returns from now on, also if the main thread is in a call that does not return.

        This starts the thread, unless a signal has: a backend that forks while it is made needs a single thread.
        """
        self._describe = describe
        self._start()

    def close(self) -> None:
        """Restore the signal's handler."""
        if self._pipe is None:
            return
        faulthandler.unregister(SIGNAL)
        signal.signal(SIGNAL, self._before)
        if not self._started:
            os.close(self._pipe[0])
        else:
            with contextlib.suppress(BlockingIOError):  # the thread is stuck with stderr, and ends with the process
                os.write(self._pipe[1], _END)
        os.close(self._pipe[1])
        self._pipe = None

    def _start(self) -> None:
        """Start the thread, once, without the locks of :mod:`threading`, which a signal may have interrupted."""
        if self._pipe is not None and not self._started:
            self._started = True
            _thread.start_new_thread(self._run, (self._pipe[0],))

    def _run(self, reading: int) -> None:
        while stacks := _read(reading):
            try:
                state = self._describe()
            except Exception as exc:  # in the middle of a change
                state = f"  the state cannot be described: {type(exc).__name__}: {exc}\n"
            with contextlib.suppress(OSError):  # stderr has no reader any more
                write_all(self._fd, f"{state}{indent_stacks(stacks)}".encode(errors="backslashreplace"))
        os.close(reading)


def _read(fd: int) -> str:
    """Wait for stacks in the pipe, until no more of them come, and return them; '' at the end."""
    data, poll = b"", select.poll()
    poll.register(fd, select.POLLIN)
    while poll.poll(None if not data else QUIET_SECONDS * 1000):
        part = os.read(fd, ROOM_BYTES)
        if not part or part.endswith(_END):
            return ""
        data += part
    return data.decode(errors="replace")


def indent_stacks(stacks: str) -> str:
    """Return the stacks with the names of their threads in place of the numbers."""
    names = {thread.ident: thread.name for thread in threading.enumerate()} | {threading.get_ident(): "of this dump"}

    def named(found: re.Match[str]) -> str:
        return f"{found[1]} {names.get(int(found[2], 16), found[2])}"

    return "".join(f"  {printable(_THREAD.sub(named, line))}\n" for line in stacks.splitlines())
