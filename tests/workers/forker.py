"""Leaves a helper behind: forked twice, in a session of its own, deaf to SIGTERM, without this job's environment."""

from __future__ import annotations

import os
import signal
import sys

from report import report

HELPER = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, ('{"event": "helper", "rank": -1, "pid": %d}\\n' % os.getpid()).encode())
while True:
    signal.pause()
"""

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", HELPER], {})
    os._exit(0)
os.wait()
report("started")
signal.pause()
