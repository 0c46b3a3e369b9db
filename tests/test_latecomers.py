"""Agents that come too late for a run, and agents of something else under its job id (rule S6)."""

from __future__ import annotations

from pathlib import Path

import pytest
from rig import WARM, Agent, Rig

from elastic_core.exit_codes import ExitCode

UNDER_WAY = "is under way"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A plain script: each life of it is a line of ``lives``; it ends, with the code in it, when ``end`` is there."""
    path = tmp_path / "train.py"
    path.write_text(
        "import os, sys, time\n"
        "from pathlib import Path\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "with open(folder / 'lives', 'a') as file:\n"
        "    file.write(os.environ['ELASTIC_ROUND'] + '\\n')\n"
        "print('a life begins', flush=True)\n"
        "end = folder / 'end'\n"
        "while not (end.exists() and end.read_text()):\n"  # the file is there before what is in it
        "    time.sleep(0.02)\n"
        "sys.exit(int(end.read_text()))\n"
    )
    return path


@pytest.fixture
def slow(tmp_path: Path) -> dict[str, str]:
    """The environment of an agent whose preload of ``slow`` ends when the file ``imported`` is there."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "slow.py").write_text(
        "import time\nfrom pathlib import Path\n"
        f"while not Path({str(tmp_path / 'imported')!r}).exists():\n"
        "    time.sleep(0.02)\n"
    )
    return {**WARM, "PYTHONPATH": str(site)}


def lives(folder: Path) -> list[str]:
    return (folder / "lives").read_text().split()


def runs(agent: Agent) -> Agent:
    agent.wait_for("a life begins")
    return agent


@pytest.mark.everyday("c10d-0", "file-3")
@pytest.mark.parametrize("code", [0, 3])
def test_a_node_of_a_run_that_ends_before_it_has_joined_reports_that_runs_verdict(
    rig: Rig, rendezvous: list[str], script: Path, slow: dict[str, str], tmp_path: Path, code: int
) -> None:
    first = runs(rig.run("--nnodes=1:2", *rendezvous, script))
    late = rig.run("--nnodes=1:2", *rendezvous, "--preload=slow", script, env=slow)
    late.wait_for(UNDER_WAY)
    (tmp_path / "end").write_text(str(code))
    assert first.exit_code() == min(code, 1), first.output
    assert late.exit_code() == min(code, 1), late.output
    assert lives(tmp_path) == ["1"], late.output
    assert "started no worker" in late.output
    assert ("the job is done" if code == 0 else "exited with code 3") in late.output


@pytest.fixture
def meeting(rendezvous: list[str]) -> list[str]:
    """The flags with which nodes meet, without a job id."""
    return [flag for flag in rendezvous if not flag.startswith("--rdzv_id")]


@pytest.mark.everyday("c10d-1:2", "file-1")
@pytest.mark.parametrize("nnodes", ["1", "1:2"])
def test_another_script_under_the_same_job_id_is_refused_and_the_running_job_is_left_alone(
    rig: Rig, meeting: list[str], script: Path, tmp_path: Path, nnodes: str
) -> None:
    other = tmp_path / "other.py"
    other.write_text("print('other ran', flush=True)\n")
    first = runs(rig.run(f"--nnodes={nnodes}", *meeting, script))
    stranger = rig.run(f"--nnodes={nnodes}", *meeting, other)
    assert stranger.exit_code() == ExitCode.REFUSED, stranger.output
    assert "'other.py'" in stranger.output
    assert "'train.py'" in stranger.output
    assert "--rdzv_id of its own" in stranger.output
    assert "other ran" not in stranger.output
    (tmp_path / "end").write_text("0")
    assert first.exit_code() == 0, first.output
    assert lives(tmp_path) == ["1"], first.output


@pytest.mark.everyday("file")
def test_the_same_script_for_one_node_is_refused_beside_a_job_that_nobody_has_named(
    rig: Rig, meeting: list[str], script: Path, tmp_path: Path
) -> None:
    first = runs(rig.run("--nnodes=1", *meeting, script))
    second = rig.run("--nnodes=1", *meeting, script)
    assert second.exit_code() == ExitCode.REFUSED, second.output
    assert "is running at this endpoint" in second.output
    (tmp_path / "end").write_text("0")
    assert first.exit_code() == 0, first.output
    assert lives(tmp_path) == ["1"], first.output


def test_a_spare_of_a_named_job_says_that_it_is_one_and_that_it_started_nothing(
    rig: Rig, rendezvous: list[str], script: Path, tmp_path: Path
) -> None:
    first = runs(rig.run("--nnodes=1", *rendezvous, script))
    spare = rig.run("--nnodes=1", *rendezvous, script)
    spare.wait_for("this node is a spare")
    (tmp_path / "end").write_text("0")
    assert first.exit_code() == 0, first.output
    assert spare.exit_code() == 0, spare.output
    assert "this node started no worker: the job needed no more nodes" in spare.output
    assert lives(tmp_path) == ["1"], first.output


def test_other_arguments_are_refused_without_a_job_id_and_told_of_with_one(
    rig: Rig, file_rendezvous: list[str], script: Path, tmp_path: Path
) -> None:
    meeting, named = file_rendezvous[:-1], file_rendezvous
    first = runs(rig.run("--nnodes=1:2", *meeting, script, "--lr=1"))
    other = rig.run("--nnodes=1:2", *meeting, script, "--lr=2")
    assert other.exit_code() == ExitCode.REFUSED, other.output
    assert "with different arguments" in other.output
    second = runs(rig.run("--nnodes=1:2", *named, script, "--lr=1"))
    third = runs(rig.run("--nnodes=1:2", *named, "--rdzv_conf=plan_timeout=200", script, "--lr=2"))
    third.wait_for("'train.py' has other arguments here than on")
    third.wait_for("plan_timeout is 200 here, 300 there.*The run's values count")
    (tmp_path / "end").write_text("0")
    for agent in (first, second, third):
        assert agent.exit_code() == 0, agent.output
