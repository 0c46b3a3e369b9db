"""The plugin that has an agent write its state, and its threads' Python stacks, to stderr on SIGQUIT, and go on.

The signal's handler wakes a thread by a pipe that never blocks. The thread writes the state and all stacks to stderr:
a stuck console does not stop the agent. It reads the stacks while it holds the interpreter's lock. The handler of
:mod:`faulthandler` would also answer while the main thread is in a native call, but without that lock: it reads frames
that change, which has ended an agent with SIGSEGV.

An agent that raises because of a defect leaves a file with its newest decisions.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import os
import re
import signal
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING

from elastic_core import JoinedRun, hookimpl
from elastic_core.agent import write_all
from elastic_core.events import Event
from elastic_core.host import printable
from elastic_core.threads import prepare_later

if TYPE_CHECKING:
    from types import FrameType

    from elastic_core import AgentEnd
    from elastic_core.config import RunConfig

SIGNAL = signal.SIGQUIT
PREPARE_SECONDS = 0.25  # after which other modules are imported: the environment may be gone when they are needed
SETTLE_SECONDS = 0.05  # after a signal, until its handler has returned: signals in that time get one answer
_ASKED, _END = b"?", b"\0"
_THREAD = re.compile(r"^(Thread|Current thread) (0x[0-9a-f]+)")


class StateDump:
    """Writes the state on each SIGQUIT, to the descriptor ``fd``, until the run ends.

    Nothing is written if the node leaves on SIGQUIT, or if the program that runs the agent has a handler for it.
    """

    elastic_hookspec_major = 2
    _config: RunConfig

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._pipe: tuple[int, int] | None = None
        self._started = False
        self._run: JoinedRun | None = None
        self._since = time.monotonic()  # when the agent began to wait to join its job

    @hookimpl
    def elastic_configure(self, config: RunConfig) -> None:
        """Take the signal."""
        self._config, self._before = config, signal.getsignal(SIGNAL)
        if isinstance(other := getattr(self._before, "__self__", None), StateDump):  # of a run before, in this process
            other.elastic_run_ends()
            self._before = other._before
        if SIGNAL in (config.signals_to_handle or ()) or self._before not in (signal.SIG_DFL, signal.SIG_IGN):
            return
        try:
            self._pipe = os.pipe2(os.O_CLOEXEC)
        except OSError:  # no descriptor is left: the agent goes without
            return
        os.set_blocking(self._pipe[1], False)
        signal.signal(SIGNAL, self._on_signal)

    @hookimpl
    def elastic_run_starts(self, run: JoinedRun) -> None:
        """Show the state of this run from now on.

        This starts the thread, unless a signal has: a backend that forks while it is made needs a single thread.
        """
        self._run = run
        self._start()
        prepare_later(PREPARE_SECONDS, _prepare, name="elastic-prepare")

    @hookimpl
    def elastic_before_join(self) -> None:
        """Show that the agent waits to join its job, perhaps as another node than before."""
        self._run, self._since = None, time.monotonic()

    @hookimpl(trylast=True)  # other plugins rescue memory first
    def elastic_agent_ends(self, end: AgentEnd) -> None:
        """Write the decisions that led to a defect."""
        if end.failed and self._run is not None:
            from elastic_operate.decision_file import write_decisions

            end.publish(Event("decisions", f"the newest decisions of this agent: {write_decisions(self._run)}"))

    @hookimpl
    def elastic_run_ends(self) -> None:
        """Stop the dump. Off the main thread Python keeps the handler, which passes the next signal on."""
        if self._pipe is None:
            return
        with contextlib.suppress(ValueError):  # this is not the main thread
            signal.signal(SIGNAL, self._before)
        if not self._started:
            os.close(self._pipe[0])
        else:
            with contextlib.suppress(BlockingIOError):  # the thread is stuck with stderr, and ends with the process
                os.write(self._pipe[1], _END)
        os.close(self._pipe[1])
        self._pipe = None

    def describe(self) -> str:
        """Return the state as it is written."""
        from elastic_operate.agent_state import describe, describe_joining  # the launch does not wait for these
        from elastic_operate.decision_file import write_decisions

        if (run := self._run) is None:
            return describe_joining(self._config, self._since)
        return f"{describe(run.config, run.look())}  decisions  {write_decisions(run)}\n"

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        if (pipe := self._pipe) is not None:
            self._start()
            with contextlib.suppress(OSError):  # enough answers are to come, or the run ends
                os.write(pipe[1], _ASKED)
        elif signal.getsignal(signum) == self._on_signal:
            signal.signal(signum, self._before)
            os.kill(os.getpid(), signum)

    def _start(self) -> None:
        """Start the thread, once, without the locks of :mod:`threading`, which a signal may have interrupted."""
        if self._pipe is not None and not self._started:
            self._started = True
            _thread.start_new_thread(self._serve, (self._pipe[0],))

    def _serve(self, reading: int) -> None:
        while (asked := os.read(reading, 1 << 16)) and not asked.endswith(_END):
            time.sleep(SETTLE_SECONDS)
            stacks = ""
            with contextlib.suppress(OSError):  # no descriptor is left
                stacks = _all_stacks()
            try:
                state = self.describe()
            except Exception as exc:  # in the middle of a change
                state = f"  the state cannot be described: {type(exc).__name__}: {exc}\n"
            with contextlib.suppress(OSError):  # stderr has no reader any more
                write_all(self._fd, f"{state}{indent_stacks(stacks)}".encode(errors="backslashreplace"))
        os.close(reading)


def _prepare() -> None:
    for name in ("agent_state", "decision_file"):
        import_module(f"elastic_operate.{name}")


def _all_stacks() -> str:
    """Return the stacks of all threads. None of them runs meanwhile, since this one holds the interpreter's lock."""
    with open(os.memfd_create("elastic-state"), "w+", errors="replace") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def indent_stacks(stacks: str) -> str:
    """Return the stacks with the names of their threads in place of the numbers."""
    names = {thread.ident: thread.name for thread in threading.enumerate()} | {threading.get_ident(): "of this dump"}

    def named(found: re.Match[str]) -> str:
        return f"{found[1]} {names.get(int(found[2], 16), found[2])}"

    return "".join(f"  {printable(_THREAD.sub(named, line))}\n" for line in stacks.splitlines())
