"""Prepares a worker to write the Python stacks of its threads when its agent asks for them, without being stopped.

:func:`prepare` runs before the program begins. It sets handlers for three signals that no program uses; each writes to
a memory file, which elastic-hangs finds by its name in ``/proc`` (``stacks.py``), so nothing has to be passed on.

* :data:`SIGNAL`: the stack of the main thread, by :mod:`faulthandler`. That handler is C code. It needs neither the
  interpreter's lock nor the program's cooperation, so a thread answers that waits for a lock, is in a collective, or
  holds the interpreter's lock in native code. It reads frames in the middle of whatever the thread does: while the
  thread runs Python code, they may be inconsistent, and the process crashes (about once in a thousand requests, in a
  loop over generators). So the agent sends it only to a thread that does not run Python code.
* :data:`SIGNAL_ALL`: the same for all threads, of which none must run.
* :data:`SIGNAL_RUNNING`: the stacks of all threads, by a handler in Python, which the main thread calls between two
  instructions, with the interpreter's lock. That is safe at any time, but it is never called while the thread waits in
  native code.

No request ends a process that is about to end. While the interpreter is torn down, it restores the default action of
each signal that has a handler, and the default action of these three ends the process. So the last ``atexit`` function
has the process ignore them, which the interpreter leaves alone.

``worker/startup`` executes this file by its path, before the program's own modules: it imports only modules that
are built in, or loaded anyway.
"""

import _signal  # type: ignore[import-not-found]  # the built-in part of signal, which imports enum
import atexit
import faulthandler
import fcntl
import os

SIGNAL: int = _signal.SIGRTMAX - 3
"""Asks for the main thread's stack. These signals end a process that has no handler, so the agent looks first."""
SIGNAL_RUNNING: int = _signal.SIGRTMAX - 4
SIGNAL_ALL: int = _signal.SIGRTMAX - 5
FILE_NAME = "elastic-stacks"  # of the memory file
_LEAST_DESCRIPTOR = 48  # a script's own files have numbers from 3 on
_registered = False


def ignore_requests_at_exit() -> None:
    """Have this process and its forks ignore requests from their last ``atexit`` function on. Call it before others
    register with ``atexit``: the function that was registered first is called last. A second call does nothing.
    """
    global _registered
    if not _registered:
        _registered = True
        atexit.register(_ignore_requests)


def _ignore_requests() -> None:
    try:
        if not callable(_signal.getsignal(SIGNAL_RUNNING)):
            return  # this process was not prepared
        _signal.signal(SIGNAL_RUNNING, _signal.SIG_IGN)
        for signum in (SIGNAL, SIGNAL_ALL):
            faulthandler.unregister(signum)  # which restores SIG_IGN, see prepare()
    except (OSError, ValueError):  # a ValueError outside of the main thread
        pass


def prepare() -> None:
    """Have this process write stacks on these signals, and on a fatal signal such as SIGSEGV to stderr.

    Where no descriptor or no memory is left, the process goes without.
    """
    try:
        if not faulthandler.is_enabled():
            faulthandler.enable()
    except (OSError, RuntimeError, ValueError):  # no stderr: faulthandler has nowhere to write
        pass
    try:
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

        ignore_requests_at_exit()
        for signum in (SIGNAL, SIGNAL_ALL):
            _signal.signal(signum, _signal.SIG_IGN)  # what faulthandler restores, here and at the interpreter's end
        faulthandler.register(SIGNAL, file=descriptor, all_threads=False, chain=False)
        faulthandler.register(SIGNAL_ALL, file=descriptor, all_threads=True, chain=False)
        _signal.signal(SIGNAL_RUNNING, answer)
        _signal.siginterrupt(SIGNAL_RUNNING, False)
    except (OSError, ValueError):  # a ValueError outside of the main thread
        pass
