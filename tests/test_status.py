"""``elastic status``: asked from outside of real jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rig import WORKERS, Rig, over


def elastic_status(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "elastic_core", "status", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def job_status(rendezvous: list[str]) -> dict[str, Any]:
    done = elastic_status("--json", *rendezvous)
    assert done.returncode == 0, done.stderr
    status: dict[str, Any] = json.loads(done.stdout)
    return status


def test_a_job_is_seen_from_outside_with_its_nodes_and_why_restarts_were_spent(
    rig: Rig, file_rendezvous: list[str]
) -> None:
    command = ["--nnodes=2", "--nproc_per_node=2", "--max_restarts=2", *file_rendezvous, str(WORKERS / "sleeper.py")]
    agents = [rig.run(*command), rig.run(*command)]
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


STEPPING = """
import os, signal
from elastic_core import report
from elastic_torch.memory import fd_store
from elastic_torch.memory.snapshot_format import COMPLETE, HEADER, MAGIC
report(step=7 + int(os.environ["RANK"]))
if os.environ["RANK"] == "0":
    text = b'[1, 6, "all", []]'
    fd = os.memfd_create("train")
    os.write(fd, HEADER.pack(MAGIC, COMPLETE, 64, len(text), 0))
    os.pwrite(fd, text, 64)
    assert fd_store.hold("train/0/0", fd)
    print("saved checkpoint at step 5", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("backend", ["file", "c10d"])
def test_ranks_are_shown_with_their_pids_steps_and_what_is_saved(rig: Rig, tmp_path: Path, backend: str) -> None:
    script = tmp_path / "stepping.py"
    script.write_text(STEPPING)
    rendezvous = over(backend, tmp_path / "store")
    pattern = "--checkpoint_pattern=at step (?P<step>\\d+)"
    command = ["--nnodes=2", "--nproc_per_node=2", pattern, *rendezvous, str(script)]
    agents = [rig.run(*command), rig.run(*command)]
    for agent in agents:
        agent.wait_for("round 1: 4 worker")
    watching = rig.start([sys.executable, "-m", "elastic_core", "status", "--watch", "--json", *rendezvous])
    shown = json.loads(
        watching.wait_for('"step": 7,.*"step": 8,.*"snapshot": {.*"checkpoint": {.*"step": 9,.*"step": 10,')
    )
    ranks = [worker["step"] for node in shown["nodes"] for worker in node["workers"]]
    assert ranks == [7, 8, 9, 10]
    pids = {worker["rank"]: worker["pid"] for node in shown["nodes"] for worker in node["workers"]}
    assert pids == {**agents[0].workers(), **agents[1].workers()}
    [snapshot] = [node["snapshot"] for node in shown["nodes"] if node["snapshot"]]
    [checkpoint] = [node["checkpoint"] for node in shown["nodes"] if node["checkpoint"]]
    assert (snapshot["step"], checkpoint["step"]) == (6, 5)
    assert all(node["store_s"] > 0 for node in shown["nodes"])
    text = elastic_status(*rendezvous).stdout
    assert re.search(rf"ranks 0 to 1 at step 7 to 8, last progress .* ago; pid {pids[0]}, {pids[1]}\n", text), text
    assert re.search(r"snapshot  of step 6, .* ago, in memory\n", text), text


def test_a_job_is_watched_until_it_is_over(rig: Rig, file_rendezvous: list[str]) -> None:
    agent = rig.run("--nnodes=1:2", "--nproc_per_node=1", *file_rendezvous, str(WORKERS / "sleeper.py"))
    agent.wait_for_report("started")
    command = [sys.executable, "-m", "elastic_core", "status", "--watch", "--json", *file_rendezvous]
    watching = rig.start(command)
    watching.wait_for('"state": "running"')
    os.kill(agent.workers()[0], signal.SIGKILL)
    watching.wait_for('"state": "failed"')
    assert watching.exit_code() == 0


def test_a_store_that_lives_in_a_job_which_is_gone_is_named(tmp_path: Path) -> None:
    done = elastic_status(*over("c10d", tmp_path))
    assert done.returncode != 0
    assert "No agent of job 'job' is there to host its store." in done.stderr


def test_a_job_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = elastic_status("nothing", "--rdzv_backend=file", f"--rdzv_endpoint={tmp_path / 'store'}")
    assert done.returncode == 2
    assert "There is no job 'nothing'" in done.stderr
