"""``elastic status``: asked from outside of real jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from stage import WORKERS, Stage


def elastic_status(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "elastic_core", "status", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def job_status(rendezvous: list[str]) -> dict[str, Any]:
    done = elastic_status("--json", *rendezvous)
    assert done.returncode == 0, done.stderr
    status: dict[str, Any] = json.loads(done.stdout)
    return status


def test_a_job_is_seen_from_outside_with_its_nodes_and_why_restarts_were_spent(
    stage: Stage, file_rendezvous: list[str]
) -> None:
    command = ["--nnodes=1:2", "--nproc_per_node=2", "--max_restarts=2", *file_rendezvous, str(WORKERS / "sleeper.py")]
    agents = [stage.run(*command), stage.run(*command)]
    for agent in agents:
        agent.wait_for_report("started", count=2, world_size=4)
    before = job_status(file_rendezvous)
    assert (before["state"], before["world_size"], before["restarts"]) == ("running", 4, 0)
    assert [node["ranks"] for node in before["nodes"]] == [[0, 1], [2, 3]]
    victim = next(iter(agents[0].workers()))
    os.kill(agents[0].workers()[victim], signal.SIGKILL)
    agents[1].wait_for("round 2: 4 worker")
    after = job_status(file_rendezvous)
    assert (after["restarts"], after["max_restarts"]) == (1, 2)
    [failure] = after["failures"]
    assert (failure["rank"], failure["exit_code"], failure["round"]) == (victim, -9, 1)


def test_a_job_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = elastic_status("nothing", "--rdzv_backend=file", f"--rdzv_endpoint={tmp_path / 'store'}")
    assert done.returncode == 2
    assert "There is no job 'nothing'" in done.stderr
