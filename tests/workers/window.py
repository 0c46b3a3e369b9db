"""Says whenever its terminal's window has another size."""

from __future__ import annotations

import os
import sys
import time

size = None
while True:
    if (now := os.get_terminal_size(2)) != size:
        size = now
        print(f"window {size.lines} x {size.columns}", file=sys.stderr, flush=True)
    time.sleep(0.01)
