"""Reports of the scripts of this suite: JSON lines in a file for each life of each rank."""

from __future__ import annotations

import json
import os
import sys

RANK, LIFE = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
REPORT = os.path.join(os.environ["PARITY_REPORTS"], f"{RANK}.{LIFE}.jsonl")


def tell(**facts: object) -> None:
    """Add to the report, and say whether this process was forked from a fork server that has imported the witness."""
    with open(REPORT, "a", encoding="utf-8") as file:
        file.write(json.dumps({"warm": "parity_witness" in sys.modules, **facts}) + "\n")
