"""Sharded trainings (FSDP2) that are hurt go on where they were: from their own memory, or from another node's."""

from __future__ import annotations

from pathlib import Path

import pytest
from stage import WARM, WORKERS, Agent, Stage

TRAIN = WORKERS / "fsdp_state.py"


def digests(*agents: Agent, event: str = "done") -> set[str]:
    """Of the states that the ranks of these nodes have reported."""
    return {report["digest"] for agent in agents for report in agent.reports(event)}


def test_a_worker_that_is_killed_costs_no_step_and_no_bit(stage: Stage, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    command = ["--standalone", "--nproc_per_node=2", "--max_restarts=1", TRAIN]
    alone = stage.run(*command)
    hurt = stage.run(*command, "--at=5", "--hold", hold)
    hurt.wait_for_report("holding", count=2)
    hurt.kill_worker(1)
    began = hurt.wait_for_report("began", count=4)[2:]
    assert [(report["tier"], report["step"]) for report in began] == [("memory", 5)] * 2
    hold.touch()
    for agent in (alone, hurt):
        assert agent.exit_code() == 0, agent.output
    assert digests(alone) == digests(hurt)
    assert len(digests(alone)) == 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("lost", [0, 1])
def test_the_parts_of_a_lost_node_come_from_their_replicas(
    stage: Stage, tmp_path: Path, file_rendezvous: list[str], lost: int
) -> None:
    hold = tmp_path / "hold"
    command = ["--nnodes=2", "--nproc_per_node=2", *file_rendezvous, TRAIN, "--steps=8"]
    command += ["--at=5", "--replicated", "--hold", hold]
    nodes = [stage.run(*command, env=WARM) for _ in range(2)]
    for node in nodes:
        node.wait_for_report("holding", count=2, step=5)
    held = digests(*nodes, event="holding")
    nodes.pop(lost).kill_node()
    [survivor] = nodes
    newcomer = stage.run(*command, env=WARM)
    newcomer.wait_for_report("began", count=2)
    began = [*newcomer.reports("began"), *survivor.wait_for_report("began", count=4)[2:]]
    assert {(report["step"], report["digest"]) for report in began} == {(5, *held)}, "no step, and no bit"
    assert [report["tier"] for report in newcomer.reports("began")] == ["peer"] * 2
    hold.touch()
    for node in (survivor, newcomer):
        assert node.exit_code() == 0, node.output
    assert len(digests(survivor, newcomer)) == 1


@pytest.mark.timeout(300)
def test_parts_are_made_anew_for_another_number_of_ranks(
    stage: Stage, tmp_path: Path, file_rendezvous: list[str]
) -> None:
    hold = tmp_path / "hold"
    job = [TRAIN, "--steps=8", "--at=5", "--replicated", "--hold", hold]
    flags = ["--nnodes=1:2", *file_rendezvous]
    large = stage.run(*flags, "--nproc_per_node=2", *job, env=WARM)
    large.wait_for_report("began", count=2, world=2)
    small = stage.run(*flags, "--nproc_per_node=1", *job, env=WARM)
    large.wait_for_report("holding", count=2, world=3)
    held = digests(large, event="holding")
    print(large.output, small.output)
    large.kill_node()
    [began] = small.wait_for_report("began", world=1)
    assert {(began["step"], began["digest"])} == {(5, *held)}
    hold.touch()
    assert small.exit_code() == 0, small.output
