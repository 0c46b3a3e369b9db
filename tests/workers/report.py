"""Reports of workers to a test: one JSON line at a time, whole even where several share a pipe."""

from __future__ import annotations

import json
import os
import time

RANK = int(os.environ.get("RANK", -1))


def report(event: str, **fields: object) -> None:
    """Say what happened; short enough for one atomic write."""
    line = json.dumps({"event": event, "rank": RANK, "pid": os.getpid(), "at": time.monotonic(), **fields}) + "\n"
    os.write(1, line.encode())
