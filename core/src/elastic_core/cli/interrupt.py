"""Ctrl-C while the command line is read: the process exits at once, since there is nothing to clean up yet.

A KeyboardInterrupt inside an import might be printed and ignored, or end in a traceback that helps no user.
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
