"""One rank raises while the others wait: at first the one that ``--ranks`` names first, after a restart the next.

When all of them have had their turn, the job succeeds.
"""

from __future__ import annotations

import os
import signal
import sys

from report import RANK, report

ranks = [int(rank) for rank in sys.argv[1].removeprefix("--ranks=").split(",")]
restart_count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
report("started", restart_count=restart_count)
if restart_count < len(ranks):
    if ranks[restart_count] == RANK:
        raise ValueError(f"rank {RANK} does not like restart count {restart_count}")
    signal.pause()
