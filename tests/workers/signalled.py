"""Reports every signal that it gets, and ends on SIGTERM or, without ``--stay``, on any of them."""

from __future__ import annotations

import os
import signal
import sys

from report import report


def handle(signum: int, _frame: object) -> None:
    """Say which it was."""
    report("signal", name=signal.Signals(signum).name)
    if signum == signal.SIGTERM or "--stay" not in sys.argv:
        sys.exit(0)


for handled in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    signal.signal(handled, handle)
report("started", world_size=int(os.environ["WORLD_SIZE"]))
while True:
    signal.pause()
