"""The result of a run, in its last line and in ``verdict.json``."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from views import incident

from elastic_core.agent.report import VERDICT_FILE, RunSummary, write_verdict
from elastic_core.incidents import Explanation, FailureClass
from elastic_core.protocol.counters import as_record
from elastic_core.protocol.entries import Closed

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
FAILED = Closed(
    success=False,
    why="it was stopped",
    exit_code=79,
    requeue=True,
    incident=replace(
        incident("a"),
        message="ConnectionResetError: [Errno 104] Connection reset by peer",
        exception="ConnectionResetError",
        follows_peer=True,
        explanation=Explanation(failure_class=FailureClass.PEER, name="the connection to another rank broke"),
        exit_code=1,
    ),
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


def test_a_verdict_is_written_beside_the_logs(tmp_path: Path) -> None:
    assert write_verdict(replace(SUMMARY, logs=tmp_path / "run"), FAILED) is None
    assert [path.name for path in (tmp_path / "run").iterdir()] == [VERDICT_FILE], "nothing else is left"
    told = json.loads((tmp_path / "run" / VERDICT_FILE).read_text())
    assert (told["exit_code"], told["requeue"], told["restarts"], told["nodes_lost"]) == (79, True, 2, 1)
    assert (told["incident"]["exception"], told["incident"]["class"]) == ("ConnectionResetError", "peer")
    assert told["incident"]["known_failure"] == "the connection to another rank broke"
    assert "explanation" not in told["incident"], "its parts have names of their own"
    assert [failure["round"] for failure in told["failures"]] == [1]


def test_a_verdict_has_the_facts_of_monitors_under_names_of_their_own(tmp_path: Path) -> None:
    facts = {"time_to_save": {"had_s": 30.0}, "success": {"had_s": 1.0}}
    assert write_verdict(replace(SUMMARY, logs=tmp_path, stop_facts=facts), FAILED) is None
    told = json.loads((tmp_path / VERDICT_FILE).read_text())
    assert (told["time_to_save"], told["success"]) == ({"had_s": 30.0}, False)


def test_a_verdict_replaces_the_one_of_another_node_as_a_whole(tmp_path: Path) -> None:
    for node in ("node0", "node1"):
        assert write_verdict(replace(SUMMARY, node=node, logs=tmp_path), FAILED) is None
    assert json.loads((tmp_path / VERDICT_FILE).read_text())["node"] == "node1"


def test_a_verdict_that_cannot_be_written_is_an_error_and_no_exception(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = write_verdict(replace(SUMMARY, logs=tmp_path / "file"), FAILED)
    assert isinstance(error, OSError)


def test_a_disk_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: answers.wait(60))
    error = write_verdict(replace(SUMMARY, logs=tmp_path), FAILED, seconds=0.01)
    answers.set()
    assert "no answer within" in str(error)


def test_without_logs_there_is_no_file() -> None:
    assert write_verdict(replace(SUMMARY, logs=None), FAILED) is None
