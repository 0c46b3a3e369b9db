"""The launcher's error file at an agent's end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elastic_core.agent import Ending
from elastic_core.exit_codes import ExitCode
from elastic_core.incidents import Incident, IncidentKind
from elastic_core.worker import ERROR_FILE
from elastic_torchrun.error_file import write_ending

LOST = Incident(kind=IncidentKind.NODE_LOST, round=1, node_id="b", host="node1", message="no heartbeat for 6.0 s")
EARLY = Incident(
    kind=IncidentKind.EXITED_EARLY, round=1, node_id="b", host="node1", rank=3, exit_code=0, message="done"
)


@pytest.mark.parametrize(
    ("ending", "message", "code"),
    [
        pytest.param(Ending(ExitCode.TOO_FEW_NODES, "missing: node1", LOST), "missing: node1", 75, id="too few nodes"),
        pytest.param(Ending(ExitCode.JOB_FAILED, "it ends", LOST), "no heartbeat for 6.0 s", 1, id="a lost node"),
        pytest.param(Ending(ExitCode.JOB_FAILED, "it ends", EARLY), "done", 1, id="a rank that exited early"),
    ],
)
def test_the_error_file_of_an_ending(
    ending: Ending, message: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ERROR_FILE, str(tmp_path / "error.json"))
    write_ending(ending)
    said = json.loads((tmp_path / "error.json").read_text())["message"]
    assert said["message"] == message
    assert said["errorCode"] == code
