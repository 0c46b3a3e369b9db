"""How a job ended, in ``verdict.json`` beside the logs."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from views import incident

from elastic_core import RunSummary
from elastic_core.events import Event
from elastic_core.incidents import Explanation, FailureClass
from elastic_core.protocol.counters import as_record
from elastic_core.protocol.entries import Closed
from elastic_operate import verdict_file
from elastic_operate.verdict_file import VERDICT_FILE, elastic_job_closed

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


def at_the_end(**facts: Any) -> list[str]:
    """End a job with these facts about the run; return what was published of the file."""
    said: list[Event] = []
    elastic_job_closed(FAILED, replace(SUMMARY, **facts), said.append)
    assert {event.name for event in said} <= {"output"}
    return [event.message for event in said]


def test_a_verdict_is_written_beside_the_logs(tmp_path: Path) -> None:
    assert at_the_end(logs=tmp_path / "run") == []
    assert [path.name for path in (tmp_path / "run").iterdir()] == [VERDICT_FILE], "nothing else is left"
    told = json.loads((tmp_path / "run" / VERDICT_FILE).read_text())
    assert (told["exit_code"], told["requeue"], told["restarts"], told["nodes_lost"]) == (79, True, 2, 1)
    assert (told["incident"]["exception"], told["incident"]["class"]) == ("ConnectionResetError", "peer")
    assert told["incident"]["known_failure"] == "the connection to another rank broke"
    assert "explanation" not in told["incident"], "its parts have names of their own"
    assert [failure["round"] for failure in told["failures"]] == [1]


def test_a_verdict_has_the_facts_of_monitors_under_names_of_their_own(tmp_path: Path) -> None:
    facts = {"time_to_save": {"had_s": 30.0}, "success": {"had_s": 1.0}}
    assert at_the_end(logs=tmp_path, stop_facts=facts) == []
    told = json.loads((tmp_path / VERDICT_FILE).read_text())
    assert (told["time_to_save"], told["success"]) == ({"had_s": 30.0}, False)


def test_a_verdict_replaces_the_one_of_another_node_as_a_whole(tmp_path: Path) -> None:
    for node in ("node0", "node1"):
        assert at_the_end(node=node, logs=tmp_path) == []
    assert json.loads((tmp_path / VERDICT_FILE).read_text())["node"] == "node1"


def test_why_a_verdict_cannot_be_written_is_published(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert at_the_end(logs=tmp_path / "file") == [f"{tmp_path}/file/verdict.json cannot be written: File exists"]


def test_a_disk_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: answers.wait(60))
    monkeypatch.setattr(verdict_file, "WRITE_MAX_SECONDS", 0.01)
    [why] = at_the_end(logs=tmp_path)
    answers.set()
    assert "no answer within" in why


def test_without_logs_there_is_no_file() -> None:
    assert at_the_end(logs=None) == []
