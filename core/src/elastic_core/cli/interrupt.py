"""Ctrl-C while the command line is read: the process exits at once, since there is nothing to clean up yet.

A KeyboardInterrupt inside an import might be printed and ignored, or end in a traceback that helps no user.

The first process of a container (pid 1) also needs handlers for the other requests to end: the kernel discards a signal
that such a process does not handle. Without them a pod that is deleted while its node waits for the store would stay
until it is killed, and the node would enter a job that it is about to leave.
"""

from __future__ import annotations

import os
import signal

_PYTHONS = signal.default_int_handler
_REQUESTS_TO_END = (signal.SIGTERM, signal.SIGHUP)


def end_at_once() -> None:
    """Make SIGINT end this process with exit code 130 and no output, unless SIGINT is ignored.

    In the first process of a container, SIGTERM ends it with exit code 143 and SIGHUP with 129. The agent sets
    its own handlers while it runs.
    """
    if signal.getsignal(signal.SIGINT) is _PYTHONS:
        signal.signal(signal.SIGINT, _end)
    for signum in _REQUESTS_TO_END if os.getpid() == 1 else ():
        if signal.getsignal(signum) is signal.SIG_DFL:
            signal.signal(signum, _end)


def discard_again(*, but: tuple[int, ...] = ()) -> None:
    """Have the kernel discard SIGTERM and SIGHUP in the first process of a container, except for those in ``but``.

    Once the run is over they would replace the exit code of the job and cut off its last reports.
    """
    for signum in _REQUESTS_TO_END:
        if signum not in but and signal.getsignal(signum) is _end:
            signal.signal(signum, signal.SIG_DFL)


def raise_again() -> None:
    """Make SIGINT raise KeyboardInterrupt again, for commands that clean up."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, _PYTHONS)


def _end(signum: int, _frame: object) -> None:
    os._exit(128 + signum)
