"""Writes lines in pieces on both streams, and says what they are."""

from __future__ import annotations

import os
import sys
import time

for number in range(200):
    print(f"rank {os.environ['RANK']} line {number}")  # two writes, as Python runs without buffers
    print(f"rank {os.environ['RANK']} error {number}", file=sys.stderr)
    time.sleep(0.001)
