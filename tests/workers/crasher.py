"""Raises on one rank until it has been restarted often enough; the other ranks wait, or finish with it."""

from __future__ import annotations

import argparse
import os
import signal

from report import RANK, report

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, default=0)
parser.add_argument("--times", type=int, default=1000)
args = parser.parse_args()

restart_count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
report("started", restart_count=restart_count)
if restart_count < args.times:
    if args.rank == RANK:
        raise ValueError(f"rank {RANK} does not like restart count {restart_count}")
    signal.pause()
