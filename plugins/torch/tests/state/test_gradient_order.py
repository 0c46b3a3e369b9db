"""DDP's buckets of a new process are those that the one before it had filled anew."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).parent / "workers" / "buckets.py"
pytestmark = pytest.mark.timeout(600)  # four processes import torch and its compiler, beside other tests


def look(folder: Path, options: dict[str, Any], hook: str = "", accumulate: int = 1) -> list[dict[str, Any]]:
    command = [sys.executable, str(WORKER), str(folder), json.dumps(options), hook, str(accumulate)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]


@pytest.mark.parametrize(
    ("options", "hook", "accumulate"),
    [
        pytest.param({}, "", 1, id="plain"),
        pytest.param({"gradient_as_bucket_view": True}, "fp16", 3, id="views, no_sync and a hook"),
    ],
)
def test_the_order_is_replayed_and_nothing_else_changes(
    tmp_path: Path, options: dict[str, Any], hook: str, accumulate: int
) -> None:
    for facts in look(tmp_path, options, hook, accumulate):
        expected = {"known": 16, "moved": True, "again": True, "same": True, "clean": True, "warned": []}
        assert facts == expected


@pytest.mark.parametrize(
    ("options", "hook", "why"),
    [
        ({"static_graph": True}, "", "with static_graph=True it learns the graph in that step"),
        ({}, "powerSGD", "its communication hook has a state"),
    ],
)
def test_where_it_cannot_be_replayed_it_says_so(tmp_path: Path, options: dict[str, Any], hook: str, why: str) -> None:
    first, *others = look(tmp_path, options, hook)
    assert first["same"]
    assert first["warned"] == [
        f"DDP's first step after this restart may round otherwise than it would have without: {why}."
    ]
    assert [facts["warned"] for facts in others] == [[], []]


def test_with_find_unused_parameters_there_is_no_order(tmp_path: Path) -> None:
    for facts in look(tmp_path, {"find_unused_parameters": True}):
        assert (facts["known"], facts["moved"], facts["again"]) == (0, False, True)
