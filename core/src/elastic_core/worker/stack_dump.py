"""Prepares a worker to write the Python stacks of its threads when its agent asks for them, without being stopped.

:func:`prepare` runs before the program begins. It has :mod:`faulthandler` write to a memory file on a signal that no
program uses. The handler is C code: it needs neither the interpreter's lock nor the main thread's cooperation, so a
worker answers that waits for a lock, is in a collective, or holds the interpreter's lock in native code. The agent
finds the memory file by its name in ``/proc`` (``agent/stacks.py``), so nothing has to be passed to the worker.

``forkserver/startup`` executes this file by its path, before the program's own modules: it imports only modules that
are built in, or loaded anyway.
"""

import _signal  # type: ignore[import-not-found]  # the built-in part of signal, which imports enum
import faulthandler
import fcntl
import os

SIGNAL: int = _signal.SIGRTMAX - 3
"""Asks for the stacks. It ends a process that has no handler, so the agent sends it only where there is one."""
FILE_NAME = "elastic-stacks"  # of the memory file
_LEAST_DESCRIPTOR = 48  # a script's own files have numbers from 3 on


def prepare() -> None:
    """Have this process write stacks on :data:`SIGNAL`, and on a fatal signal such as SIGSEGV to stderr.

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
        faulthandler.register(SIGNAL, file=descriptor, all_threads=True, chain=False)
    except OSError:
        pass
