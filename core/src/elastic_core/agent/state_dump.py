"""On SIGQUIT an agent writes to stderr what it does and waits for, with the Python stacks of its threads, and goes on.

The stacks are written by :mod:`faulthandler` from the signal's own handler, whatever the main thread does, into a pipe
that never blocks. A thread waits at the other end, adds the state, and copies all of it to stderr. So neither a call
that does not return nor a console that is stuck can keep the dump from coming, or the dump the agent from working.
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
ROOM_BYTES = 1 << 18  # of the pipe; what stacks do not fit there are cut off
_END = b"\0"
_THREAD = re.compile(r"^(Thread|Current thread) (0x[0-9a-f]+)")


class StateDump:
    """Writes the state on each SIGQUIT, until it is closed. Main thread only.

    Where the node leaves on SIGQUIT, or the program that runs the agent has a handler of its own, nothing is written.

    Args:
        handled: The signals on which the node leaves.
        describe: Says what the agent does, on another thread.
        fd: Where to write; it stays the caller's.
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
        """Write what this says from now on, also where the main thread is in a call that does not return.

        The thread for that starts here. A backend may fork while it is made, and a process should have one thread then;
        so it is started after that, or by the first signal.
        """
        self._describe = describe
        self._start()

    def close(self) -> None:
        """Leave the signal to whoever had it."""
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
        """Start the thread, once. A signal may be in the middle of :mod:`threading`, whose locks are not taken here."""
        if self._pipe is not None and not self._started:
            self._started = True
            _thread.start_new_thread(self._run, (self._pipe[0],))

    def _run(self, reading: int) -> None:
        while stacks := _read(reading):
            try:
                state = self._describe()
            except Exception as exc:  # in the middle of a change
                state = f"  the state cannot be described: {type(exc).__name__}: {exc}\n"
            with contextlib.suppress(OSError):  # nobody reads stderr any more
                write_all(self._fd, f"{state}{indent_stacks(stacks)}".encode(errors="backslashreplace"))
        os.close(reading)


def _read(fd: int) -> str:
    """Return the stacks that have been written to the pipe, as soon as there are any and no more come; '' at the
    end.
    """
    data, poll = b"", select.poll()
    poll.register(fd, select.POLLIN)
    while poll.poll(None if not data else QUIET_SECONDS * 1000):
        part = os.read(fd, ROOM_BYTES)
        if not part or part.endswith(_END):
            return ""
        data += part
    return data.decode(errors="replace")


def indent_stacks(stacks: str) -> str:
    """Return the stacks with the names of their threads, where :mod:`faulthandler` has their numbers."""
    names = {thread.ident: thread.name for thread in threading.enumerate()} | {threading.get_ident(): "of this dump"}

    def named(found: re.Match[str]) -> str:
        return f"{found[1]} {names.get(int(found[2], 16), found[2])}"

    return "".join(f"  {printable(_THREAD.sub(named, line))}\n" for line in stacks.splitlines())
