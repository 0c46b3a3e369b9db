"""Real parts of real DTensors, between ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "shard_ranks.py"
WORLDS = [2, 3, 1, 4, 4, 2]
"""With four, the mesh has a second dimension that replicates."""


@pytest.fixture(scope="module")
def said() -> list[dict[str, Any]]:
    done = subprocess.run([sys.executable, str(SCRIPT), *map(str, WORLDS)], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_parts_are_put_together_for_any_number_of_ranks(said: list[dict[str, Any]]) -> None:
    brought = [facts for facts in said if "equal" in facts]
    assert len(brought) == sum(WORLDS[1:])
    assert all(facts["equal"] for facts in brought)
    assert all(facts["in_place"] for facts in brought), "what is there is filled"
    assert {facts["act"] for facts in brought if facts["whole"]} == {4}
    assert {facts["act"] for facts in brought if facts["exact"]} == {4}


def test_each_part_has_a_replica_with_the_next_node(said: list[dict[str, Any]]) -> None:
    replicated = [facts for facts in said if "replicated" in facts]
    assert len(replicated) == sum(world for world in WORLDS if world > 1)
    assert all(facts["replicated"] for facts in replicated)
    assert all(facts["whose"] == (facts["rank"] - 1) % WORLDS[facts["act"]] for facts in replicated)
