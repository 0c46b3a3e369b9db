"""Nodes come and go, and no step is lost: scripts that call should_checkpoint() stop together, at one step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rig import WORKERS, Agent, Rig

TERM = 128 + signal.SIGTERM


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """The file that ends the job."""
    return tmp_path / "done"


@pytest.fixture
def job(done: Path, tmp_path: Path) -> list[object]:
    """A script whose ranks need each other in every step, and that takes notices."""
    return [WORKERS / "graceful.py", "--until", done, "--state", tmp_path / "state"]


def trains(agent: Agent, world_size: int, *, count: int = 1) -> None:
    """Wait until this agent's workers have taken some steps with all ``world_size`` ranks."""
    agent.wait_for_report("stepped", count=count, world_size=world_size)


def both_finish(done: Path, *agents: Agent) -> None:
    done.touch()
    for agent in agents:
        assert agent.exit_code() == 0, agent.output


def stops(*agents: Agent, world_size: int, ranks: int = 1) -> list[int]:
    """At which steps the ranks of this world size have stopped, once ``ranks`` of each agent have said so."""
    for agent in agents:  # a round that another agent has reported may be read before the end of the one before
        agent.wait_for_report("stopped", count=ranks, world_size=world_size)
    return [r["step"] for agent in agents for r in agent.reports("stopped", world_size=world_size)]


def starts(*agents: Agent, world_size: int) -> set[int]:
    """After which steps the ranks of this world size have begun."""
    return {r["step"] for agent in agents for r in agent.reports("training", world_size=world_size)}


def test_a_resize_loses_no_step(rig: Rig, rendezvous: list[str], job: list[object], done: Path) -> None:
    command = ["--nnodes=1:2", "--nproc_per_node=2", "--max_restarts=0", *rendezvous, *job]
    first = rig.run(*command)
    trains(first, 2)
    second = rig.run(*command)
    trains(second, 4)
    (step,) = {*stops(first, world_size=2, ranks=2)}
    for agent in (first, second):
        agent.wait_for_report("training", count=2, world_size=4)
    assert starts(first, second, world_size=4) == {step}, "and they go on from there, all of them"
    both_finish(done, first, second)


def test_ranks_that_are_far_apart_stop_at_one_step(
    rig: Rig, file_rendezvous: list[str], job: list[object], done: Path
) -> None:
    command = ["--nnodes=1:2", "--nproc_per_node=2", "--max_restarts=0", *file_rendezvous, *job, "--free"]
    first = rig.run(*command)
    first.wait_for_report("stepped", step=40, rank=0)
    apart = {r.rank: r["step"] for r in first.reports("stepped")}
    assert apart.get(1, 0) < apart[0]
    second = rig.run(*command)
    second.wait_for_report("training", count=2, world_size=4)
    (step,) = {*stops(first, world_size=2, ranks=2)}
    assert starts(second, world_size=4) == {step}
    both_finish(done, first, second)


def test_a_node_that_announces_its_leaving_takes_no_step_with_it(
    rig: Rig, rendezvous: list[str], job: list[object], done: Path
) -> None:
    command = ["--nnodes=1:2", "--max_restarts=0", "--preemption_grace=60", *rendezvous, *job]
    first = rig.run(*command)
    trains(first, 1)
    second = rig.run(*command)
    trains(second, 2)
    second.signal(signal.SIGTERM)
    assert second.exit_code() == TERM
    first.wait_for_report("training", count=2, world_size=1)
    (step,) = {*stops(first, second, world_size=2)}
    assert len(stops(first, second, world_size=2)) == 2
    assert step in starts(first, world_size=1)
    both_finish(done, first)


def test_the_node_that_decides_may_announce_its_leaving(
    rig: Rig, file_rendezvous: list[str], job: list[object], done: Path
) -> None:
    command = ["--nnodes=1:2", "--max_restarts=0", "--preemption_grace=60", *file_rendezvous, *job]
    leader = rig.run(*command)
    trains(leader, 1)
    second = rig.run(*command)
    trains(second, 2)
    leader.signal(signal.SIGTERM)
    assert leader.exit_code() == TERM
    trains(second, 1)
    assert starts(second, world_size=1) == {*stops(leader, second, world_size=2)}
    both_finish(done, second)


def test_a_script_that_ignores_notices_gets_sigterm_at_the_deadline(
    rig: Rig, file_rendezvous: list[str], job: list[object], done: Path
) -> None:
    soon = "--rdzv_conf=plan_timeout=1"
    command = ["--nnodes=1:2", "--max_restarts=0", *file_rendezvous, soon, *job, "--ignore", "--free"]
    first = rig.run(*command)
    trains(first, 1)
    second = rig.run(*command)
    second.wait_for_report("training", world_size=2)
    first.wait_for_report("terminated")
    first.wait_for("had not stopped at step")
    both_finish(done, first, second)


def test_a_script_that_knows_nothing_of_notices_is_stopped_as_ever(
    rig: Rig, file_rendezvous: list[str], done: Path
) -> None:
    job = [WORKERS / "barrier.py", "--until", done]
    command = ["--nnodes=1:2", "--max_restarts=0", "--preemption_grace=60", *file_rendezvous, *job]
    first = rig.run(*command)
    first.wait_for_report("training", world_size=1)
    second = rig.run(*command)
    second.wait_for_report("training", world_size=2)
    second.signal(signal.SIGTERM)
    assert second.exit_code() == TERM
    first.wait_for_report("training", count=2, world_size=1)
    both_finish(done, first)


def test_a_worker_that_is_killed_under_a_plan_is_an_ordinary_failure(
    rig: Rig, file_rendezvous: list[str], job: list[object], done: Path
) -> None:
    command = ["--nnodes=1:2", "--nproc_per_node=2", "--max_restarts=1", *file_rendezvous, *job, "--ignore"]
    first = rig.run(*command)
    trains(first, 2)
    second = rig.run(*command)
    first.wait_for("stop at step")
    first.kill_worker(1)
    second.wait_for_report("training", count=2, world_size=4)
    first.wait_for("restart 1 of 1")
    both_finish(done, first, second)


def test_the_one_that_decides_is_lost_under_a_plan(
    rig: Rig, file_rendezvous: list[str], job: list[object], done: Path
) -> None:
    quick = "--rdzv_conf=beat_interval=0.5,lost_after=15"
    command = ["--nnodes=2:3", "--max_restarts=0", *file_rendezvous, quick, *job, "--ignore"]
    leader = rig.run(*command)
    leader.wait_for("1 more node")
    second = rig.run(*command)
    trains(second, 2)
    third = rig.run(*command)
    leader.wait_for("stop at step")
    leader.kill_node()
    for agent in (second, third):
        agent.wait_for("round 2: 2 worker")
    trains(second, 2, count=len(second.reports("stepped")) + 1)
    both_finish(done, second, third)


def test_a_node_leaves_while_all_stop_for_another_that_joins(
    rig: Rig, file_rendezvous: list[str], job: list[object], done: Path
) -> None:
    command = ["--nnodes=1:3", "--max_restarts=0", "--preemption_grace=60", *file_rendezvous, *job, "--pace=0.3"]
    first = rig.run(*command)
    trains(first, 1)
    second = rig.run(*command)
    first.wait_for("are to stop together")
    first.signal(signal.SIGTERM)
    assert first.exit_code() == TERM
    second.wait_for_report("training", world_size=1)
    assert starts(second, world_size=1) == {*stops(first, world_size=1)}
    both_finish(done, second)


def test_a_host_is_drained_by_hand(rig: Rig, rendezvous: list[str], job: list[object], done: Path) -> None:
    command = ["--nnodes=1:2", "--max_restarts=0", *rendezvous, *job]
    only = rig.run(*command)
    trains(only, 1)
    drained = subprocess.run(
        [sys.executable, "-m", "elastic_core", "drain", os.uname().nodename, *rendezvous],
        capture_output=True,
        text=True,
        check=False,
    )
    assert drained.returncode == 0, drained.stdout + drained.stderr
    assert "1 agent" in drained.stdout
    assert only.exit_code() == TERM
    assert len(stops(only, world_size=1)) == 1, only.output


def test_a_drain_of_a_host_that_has_no_agent_is_refused(
    rig: Rig, file_rendezvous: list[str], job: list[object], done: Path
) -> None:
    only = rig.run("--nnodes=1:2", *file_rendezvous, *job)
    trains(only, 1)
    drained = subprocess.run(
        [sys.executable, "-m", "elastic_core", "drain", "elsewhere", *file_rendezvous],
        capture_output=True,
        text=True,
        check=False,
    )
    assert drained.returncode == 2
    assert "No agent of job 'job' runs on 'elsewhere'" in drained.stderr
    assert os.uname().nodename in drained.stderr
    both_finish(done, only)
