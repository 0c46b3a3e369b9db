"""Real parts of real DTensors, between ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "shard_ranks.py"
WORLDS = [3, 4, 4, 1]
"""With four, the mesh has a second dimension that replicates."""


def play(scene: str, *worlds: int) -> list[dict[str, Any]]:
    """Return the reports of the ranks."""
    command = [sys.executable, str(SCRIPT), scene, *map(str, worlds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def said() -> list[dict[str, Any]]:
    return play("memory", *WORLDS)


def test_parts_are_put_together_for_any_number_of_ranks(said: list[dict[str, Any]]) -> None:
    brought = [facts for facts in said if "equal" in facts]
    assert len(brought) == sum(WORLDS[1:])
    assert all(facts["equal"] for facts in brought)
    assert all(facts["in_place"] for facts in brought), "what is there is filled"
    assert {facts["act"] for facts in brought if facts["whole"]} == {2}
    assert {facts["act"] for facts in brought if facts["exact"]} == {2}


def test_each_part_has_a_replica_with_the_next_node(said: list[dict[str, Any]]) -> None:
    replicated = [facts for facts in said if "replicated" in facts]
    assert len(replicated) == sum(world for world in WORLDS if world > 1)
    assert all(facts["replicated"] for facts in replicated)
    assert all(facts["whose"] == (facts["rank"] - 1) % WORLDS[facts["act"]] for facts in replicated)


def test_when_a_rank_cannot_go_on_replicating_the_others_do_not_wait_for_it() -> None:
    said = play("broken", 3)
    assert [facts["replicated"] for facts in said] == [False] * 3


def test_three_ranks_and_one_go_on_from_a_state_that_two_saved_on_disk() -> None:
    said = play("disk", 2, 3, 1)
    began = {facts["act"]: facts for facts in said if "began" in facts}
    ended = {facts["act"]: facts for facts in said if "ended" in facts}
    assert [(began[act]["tier"], began[act]["step"]) for act in range(3)] == [(None, 0), ("disk", 2), ("disk", 4)]
    assert [began[act]["began"] == ended[act - 1]["ended"] for act in (1, 2)] == [True, True]
    assert [ended[act]["lr"] for act in range(3)] == pytest.approx([0.05, 0.005, 0.0005])
