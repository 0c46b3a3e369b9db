"""How a worker's agent learns that its program has ended while the interpreter is still taking itself apart.

That takes as long as there are modules and memory to let go of: a good part of a second with torch, several where the
machine is busy, and nothing of it concerns anybody. So once the traceback is printed and everything that the program
wanted to be called at its end was called, a failure is told, and the agent need not wait for the exit code. Any other
end is told as well, for the agent to say so where the interpreter hangs in its own.
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
        self._tell: Callable[[bool], object] | None = None
        atexit.register(self._called)

    def watch(self, tell: Callable[[bool], object]) -> None:
        """Call ``tell`` at the end of this process, not its forks': with whether an exception ended the program."""
        self._process, self._tell = os.getpid(), tell

    def _called(self) -> None:
        if self._tell is None or self._process != os.getpid():
            return
        for stream in (sys.stdout, sys.stderr) if (failed := ended_by_exception()) else ():
            if stream is not None:
                stream.flush()  # as would be done next
        self._tell(failed)


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
