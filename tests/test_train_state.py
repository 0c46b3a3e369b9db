"""Trainings that are hurt go on where they were: from the memory that the agent keeps, or from a peer."""

from __future__ import annotations

import os
import random
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from stage import WARM, WORKERS, Agent, Stage, descendants

TRAIN = WORKERS / "train_state.py"
TWO = ["--standalone", "--nproc_per_node=2"]
KILLS = 5
"""How often a run is hurt, with each seed."""


def memory_files(mark: str) -> Iterator[tuple[int, str]]:
    """Who holds or maps memory of a name, of all processes of this host, and which."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            links = {os.readlink(f"/proc/{entry}/fd/{fd}") for fd in os.listdir(f"/proc/{entry}/fd")}
            maps = Path(f"/proc/{entry}/maps").read_text()
        except OSError:
            continue
        for name in {link.split(" ")[0] for link in links if f"memfd:{mark}" in link}:
            yield int(entry), name
        if f"memfd:{mark}" in maps:
            yield int(entry), "mapped"


def digests(*agents: Agent) -> set[str]:
    """Of the weights that the ranks of these nodes have in the end."""
    return {report["digest"] for agent in agents for report in agent.reports("done")}


def steps(agent: Agent) -> int:
    return len(agent.reports("step", rank=0))


@pytest.mark.timeout(400)
def test_a_run_that_is_killed_again_and_again_ends_with_the_weights_of_one_that_is_left_alone(
    stage: Stage, seed: int
) -> None:
    dice = random.Random(seed)
    job = [TRAIN, "--epochs=16", "--samples=128"]
    alone = stage.run(*TWO, *job, env=WARM)
    assert alone.exit_code() == 0, alone.output
    agent = stage.run(*TWO, f"--max_restarts={KILLS}", *job, env=WARM)
    for kill in range(KILLS):
        more = steps(agent) + dice.randrange(1, 20)
        agent.wait_for_report("began", count=2 * kill + 2)
        stage.wait_until(lambda more=more: steps(agent) >= more or agent.ended)  # type: ignore[misc]
        workers = agent.workers()
        os.kill(workers[dice.choice(sorted(workers))], signal.SIGKILL)
    assert agent.exit_code() == 0, agent.output
    began = [(report["tier"], report["step"] > 0) for report in agent.reports("began")]
    assert began[:2] == [(None, False)] * 2
    assert set(began[2:]) == {("memory", True)}, "no step was lost"
    assert len(began) == 2 * (KILLS + 1)
    assert digests(agent) == digests(alone)
    assert len(digests(alone)) == 1


@pytest.mark.parametrize("how", [[TRAIN], ["--no_python", sys.executable, TRAIN]], ids=["script", "no_python"])
def test_the_state_of_the_last_step_is_the_next_rounds(stage: Stage, tmp_path: Path, how: list[object]) -> None:
    hold = tmp_path / "hold"
    agent = stage.run(*TWO, "--max_restarts=1", *how, "--epochs=1", "--at=5", "--hold", hold)
    agent.wait_for_report("holding", count=2)
    agent.kill_worker(1)
    agent.wait_for_report("holding", count=4)
    hold.touch()
    assert agent.exit_code() == 0, agent.output
    assert [(r["tier"], r["step"]) for r in agent.reports("began", round="2")] == [("memory", 5)] * 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("lost", [0, 1])
def test_an_empty_node_in_the_place_of_a_lost_one_gets_the_state_from_the_survivor(
    stage: Stage, tmp_path: Path, file_rendezvous: list[str], lost: int
) -> None:
    hold = tmp_path / "hold"
    command = ["--nnodes=2", "--nproc_per_node=2", *file_rendezvous, TRAIN]
    command += ["--epochs=2", "--at=5", "--hold", hold]
    nodes = [stage.run(*command) for _ in range(2)]
    for node in nodes:
        node.wait_for_report("holding", count=2)
    nodes.pop(lost).kill_node()
    [survivor] = nodes
    newcomer = stage.run(*command)
    newcomer.wait_for_report("holding", count=2, step=5)
    survivor.wait_for_report("holding", count=4, step=5)
    hold.touch()
    for node in (survivor, newcomer):
        assert node.exit_code() == 0, node.output
    assert [(r["tier"], r["step"]) for r in newcomer.reports("began")] == [("peer", 5)] * 2
    assert [(r["tier"], r["step"]) for r in survivor.reports("began")[2:]] == [("memory", 5)] * 2
    assert len(digests(survivor, newcomer)) == 1


@pytest.mark.parametrize("end", ["success", "failure", "all_but_the_agent_killed"])
def test_no_shared_memory_outlives_the_job(stage: Stage, tmp_path: Path, end: str) -> None:
    hold, mark = tmp_path / "hold", f"state-{uuid.uuid4().hex}"
    job = [TRAIN, "--epochs=1", "--at=5", "--hold", hold, "--mark", mark]
    agent = stage.run(*TWO, *job, *(["--fail=6"] if end == "failure" else []))
    agent.wait_for_report("holding", count=2)
    assert sorted(name for pid, name in memory_files(mark) if pid == agent.pid) == [
        f"/memfd:{mark}/{local_rank}/{slot}" for local_rank in (0, 1) for slot in (0, 1)
    ]
    if end == "all_but_the_agent_killed":
        for pid in descendants(agent.pid):
            os.kill(pid, signal.SIGKILL)
    hold.touch()
    assert (agent.exit_code() == 0) == (end == "success")
    assert list(memory_files(mark)) == []


def test_the_step_and_the_epoch_are_part_of_the_root_cause(stage: Stage) -> None:
    agent = stage.run(*TWO, TRAIN, "--epochs=2", "--fail=10")
    assert agent.exit_code() == 1
    assert "ValueError: no such layer (step 10, epoch 1)" in agent.output


def test_it_works_under_torchrun_too(stage: Stage) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", *TWO, str(TRAIN), "--epochs=1"]
    agent = stage.start(command, env={"ELASTIC_ROUND": "0"})
    assert agent.exit_code() == 0, agent.output
    assert len(digests(agent)) == 1
