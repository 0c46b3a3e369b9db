"""How a worker's agent learns that its program has failed while the interpreter is still taking itself apart.

That takes as long as there are modules and memory to let go of: a good part of a second with torch, several where the
machine is busy, and nothing of it concerns anybody. So once the traceback is printed and everything that the program
wanted to be called at its end was called, the failure is told, and the agent need not wait for the exit code.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable


class Farewell:
    """The last that is called at the end of the interpreter: make it before anything registers with ``atexit``."""

    def __init__(self) -> None:
        self._process = 0
        self._tell: Callable[[], object] | None = None
        atexit.register(self._called)

    def watch(self, tell: Callable[[], object]) -> None:
        """Call ``tell`` at the end of this process, not of its forks, if an exception has ended the program."""
        self._process, self._tell = os.getpid(), tell

    def _called(self) -> None:
        if self._tell is not None and self._process == os.getpid() and ended_by_exception():
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()  # as would be done next
            self._tell()


def ended_by_exception() -> bool:
    """Whether the main program has been ended by an exception whose traceback is printed, so that the exit code is 1.

    Such tracebacks begin at the bottom of the stack. Others that were printed on the way, from a callback of C code
    or an interactive console, do not; and Ctrl-C ends in a signal.
    """
    error = getattr(sys, "last_value", None)
    if not isinstance(error, BaseException) or isinstance(error, KeyboardInterrupt) or error.__traceback__ is None:
        return False
    frame = error.__traceback__.tb_frame
    if frame.f_back is not None:
        return False
    by_runpy = frame.f_globals.get("__name__") == "runpy"  # python -m, a directory, a zip file
    return by_runpy or (frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__")
