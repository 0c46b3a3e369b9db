"""Says that it is there, with its environment's numbers, and waits to be stopped."""

from __future__ import annotations

import os
import signal

from report import report

report(
    "started",
    world_size=int(os.environ["WORLD_SIZE"]),
    local_rank=int(os.environ["LOCAL_RANK"]),
    restart_count=int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
)
signal.pause()
