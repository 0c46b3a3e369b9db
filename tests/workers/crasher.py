"""One rank raises while the others wait: at first the one that ``--ranks`` names first, after a restart the next.

Each waits for the other ranks of its node to be there first. When all of them have had their turn, the job succeeds.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from report import RANK, report

ranks = [int(rank) for rank in sys.argv[1].removeprefix("--ranks=").split(",")]
restart_count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
report("started", restart_count=restart_count)
round_directory = Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parents[1]
(round_directory / f"{RANK}.here").touch()
while len(list(round_directory.glob("*.here"))) < int(os.environ["LOCAL_WORLD_SIZE"]):
    time.sleep(0.01)
if restart_count < len(ranks):
    if ranks[restart_count] == RANK:
        raise ValueError(f"rank {RANK} does not like restart count {restart_count}")
    signal.pause()
