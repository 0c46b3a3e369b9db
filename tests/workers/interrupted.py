"""Saves when it is interrupted, which takes as long as the file ``hold`` exists."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from report import report

try:
    report("started")
    signal.pause()
except KeyboardInterrupt:
    report("saving")
    while Path("hold").exists():
        time.sleep(0.01)
    report("saved")
