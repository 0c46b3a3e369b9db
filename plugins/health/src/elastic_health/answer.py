"""The output of a check that is a process, and its exit code: the JSON form that ``elastic_health.checks`` reads."""

from __future__ import annotations

import json
from collections.abc import Sequence


def answer(messages: Sequence[str]) -> int:
    """Print what was found, and return the exit code: 0 for a healthy node."""
    print(json.dumps({"fail_count": len(messages), "messages": [*messages]}), flush=True)
    return 1 if messages else 0
