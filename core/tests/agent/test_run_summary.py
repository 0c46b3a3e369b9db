"""The result of a run in its last line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from views import incident

from elastic_core.gates import RunSummary
from elastic_core.protocol.counters import as_record

SUMMARY = RunSummary(
    job="job42",
    run="c48a123563c5",
    node="node0",
    rounds=4,
    restarts=2,
    max_restarts=3,
    nodes_lost=1,
    seconds=10_800.0,
    interrupted_seconds=11.2,
    failures=(as_record(incident("a")),),
    logs=Path("/logs/run"),
)


@pytest.mark.parametrize(
    ("summary", "text"),
    [
        (SUMMARY, "2 restarts, 1 lost node, processes were down for 11.2 s of 3.0 h (up 99.9 %), logs in /logs/run"),
        (
            replace(SUMMARY, restarts=1, nodes_lost=0, logs=None),
            "1 restart, processes were down for 11.2 s of 3.0 h (up 99.9 %)",
        ),
        (replace(SUMMARY, restarts=0, nodes_lost=2, interrupted_seconds=0.0, logs=None), "2 lost nodes"),
        (replace(SUMMARY, restarts=0, nodes_lost=0, interrupted_seconds=0.0, logs=None), ""),
        (
            replace(SUMMARY, restarts=0, nodes_lost=0, seconds=60.0, interrupted_seconds=63.0, logs=None),
            "processes were down for 63.0 s of 60.0 s (up 0.0 %)",
        ),
        (
            replace(SUMMARY, restarts=0, nodes_lost=0, seconds=59.9, interrupted_seconds=3.0, logs=None),
            "processes were down for 3.0 s",
        ),
    ],
)
def test_a_run_in_one_line(summary: RunSummary, text: str) -> None:
    assert summary.describe() == text
