"""Reports that a worker's program has ended, before the interpreter is torn down.

With torch that takes a good part of a second, and several on a busy machine. So a failure is reported once the
traceback is printed and the program's exit functions were called, and the agent does not wait for the exit code. Other
ends are reported too, so that the agent can say if the interpreter hangs in its teardown.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable


class Farewell:
    """The last function that the interpreter calls at its end: make it before others register with ``atexit``."""

    def __init__(self) -> None:
        self._process = 0
        self._tell: Callable[[bool], object] | None = None
        atexit.register(self._called)

    def watch(self, tell: Callable[[bool], object]) -> None:
        """Call ``tell`` at the end of this process, not of its forks: with whether an exception ended the program."""
        self._process, self._tell = os.getpid(), tell

    def _called(self) -> None:
        if self._tell is None or self._process != os.getpid():
            return
        for stream in (sys.stdout, sys.stderr) if (failed := ended_by_exception()) else ():
            if stream is not None:
                stream.flush()  # as would be done next
        self._tell(failed)


def ended_by_exception() -> bool:
    """Whether an exception with a printed traceback has ended the main program, so that the exit code is 1.

    Such a traceback begins at the bottom of the stack; one from a callback of C code or an interactive console does
    not. Ctrl-C ends in a signal.
    """
    error = getattr(sys, "last_value", None)
    if not isinstance(error, BaseException) or isinstance(error, KeyboardInterrupt) or error.__traceback__ is None:
        return False
    frame = error.__traceback__.tb_frame
    if frame.f_back is not None:
        return False
    by_runpy = frame.f_globals.get("__name__") == "runpy"  # python -m, a directory, a zip file
    return by_runpy or (frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__")
