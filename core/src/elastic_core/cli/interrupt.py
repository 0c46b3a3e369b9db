"""Ctrl-C while the command line is being read.

Python raises KeyboardInterrupt wherever the main thread happens to be: in the middle of an import, where it may be
printed and forgotten, or with a traceback that helps nobody. Until a command has begun there is nothing to clean up.
"""

from __future__ import annotations

import os
import signal

_PYTHONS = signal.default_int_handler


def end_at_once() -> None:
    """Have SIGINT end this process with exit code 130, without a word; not where SIGINT is ignored."""
    if signal.getsignal(signal.SIGINT) is _PYTHONS:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """Have SIGINT raise KeyboardInterrupt again, for commands that have something to clean up."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, _PYTHONS)


def _end(signum: int, _frame: object) -> None:
    os._exit(128 + signum)
