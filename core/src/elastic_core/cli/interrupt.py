"""Ctrl-C while the command line is read.

Python raises KeyboardInterrupt at any point of the main thread: inside an import it may be printed and ignored, or end
in a traceback that helps no user. Until a command begins there is nothing to clean up, so the process exits at once.
"""

from __future__ import annotations

import os
import signal

_PYTHONS = signal.default_int_handler


def end_at_once() -> None:
    """Make SIGINT end this process with exit code 130 and no output, unless SIGINT is ignored."""
    if signal.getsignal(signal.SIGINT) is _PYTHONS:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """Make SIGINT raise KeyboardInterrupt again, for commands that clean up."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, _PYTHONS)


def _end(signum: int, _frame: object) -> None:
    os._exit(128 + signum)
