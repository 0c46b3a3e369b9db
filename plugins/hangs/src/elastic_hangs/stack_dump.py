"""Prepares a worker to write the Python stacks of its threads when its agent asks for them, without being stopped.

:func:`prepare` runs before the program begins. It sets handlers for three signals that no program uses; each writes to
a memory file, which ``stacks.py`` finds by its name in ``/proc``, so nothing has to be passed on.

* :data:`SIGNAL`: the stack of the main thread, by :mod:`faulthandler`. That handler is C code. It needs neither the
  interpreter's lock nor the program's cooperation, so a thread answers that waits for a lock, is in a collective, or
  holds the interpreter's lock in native code. It reads frames in the middle of whatever the thread does: while the
  thread runs Python code, they may be inconsistent, and the process crashes (about once in a thousand requests, in a
  loop over generators). So the agent sends it only to a thread that does not run Python code.
* :data:`SIGNAL_ALL`: the same for all threads, of which none must run.
* :data:`SIGNAL_RUNNING`: the stacks of all threads, by a handler in Python, which the main thread calls between two
  instructions, with the interpreter's lock. That is safe at any time, but it is never called while the thread waits in
  native code.

Each Python worker executes this file before its program (``elastic_worker_startup``), so it imports only modules that
the interpreter has loaded by itself. :func:`prepare` imports two more, of which the program finds none.
"""

import _signal  # type: ignore[import-not-found]  # the built-in part of signal, which imports enum
import os
import sys

TYPE_CHECKING = False  # typing's: see the last paragraph above
if TYPE_CHECKING:
    from collections.abc import Callable

# The three of core's ``exit_codes.STACK_REQUESTS``. They end a process that has no handler, so the agent looks first.
SIGNAL: int = _signal.SIGRTMAX - 3
SIGNAL_RUNNING: int = _signal.SIGRTMAX - 4
SIGNAL_ALL: int = _signal.SIGRTMAX - 5
FILE_NAME = "elastic-stacks"  # of the memory file
_LEAST_DESCRIPTOR = 48  # a script's own files have numbers from 3 on


def prepare(at_end: "Callable[[Callable[[], None]], object]") -> None:
    """Have this process write stacks on these signals; ``at_end`` has a function called after those of ``atexit``.

    No request ends a process that is about to end. While the interpreter is torn down, it restores the default action
    of each signal that has a handler, and the default action of these three ends the process. So the process ignores
    them at the end, which the interpreter leaves alone.

    Raises:
        OSError: No descriptor or no memory is left. The worker goes without.
    """
    usual = {*sys.modules}
    import faulthandler
    import fcntl

    for name in {*sys.modules} - usual:
        del sys.modules[name]

    low = os.memfd_create(FILE_NAME)
    try:
        descriptor = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _LEAST_DESCRIPTOR)
    finally:
        os.close(low)

    def answer(_number: int, _frame: object) -> None:
        try:
            faulthandler.dump_traceback(descriptor, all_threads=True)
        except Exception:  # the program has closed the file
            return

    def ignore_requests() -> None:
        try:
            _signal.signal(SIGNAL_RUNNING, _signal.SIG_IGN)
            for signum in (SIGNAL, SIGNAL_ALL):
                faulthandler.unregister(signum)  # which restores SIG_IGN
        except (OSError, ValueError):  # a ValueError outside of the main thread
            return

    at_end(ignore_requests)
    for signum in (SIGNAL, SIGNAL_ALL):
        _signal.signal(signum, _signal.SIG_IGN)  # what faulthandler restores, also when the interpreter ends
        faulthandler.register(signum, file=descriptor, all_threads=signum == SIGNAL_ALL, chain=False)
    _signal.signal(SIGNAL_RUNNING, answer)
    _signal.siginterrupt(SIGNAL_RUNNING, False)
