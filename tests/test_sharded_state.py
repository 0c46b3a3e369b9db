"""Sharded trainings (FSDP2) that are hurt go on where they were: from their own memory, or from another node's."""

from __future__ import annotations

import signal
import uuid
from pathlib import Path

import pytest
from memory_files import memory_files
from rig import WARM, WORKERS, Agent, Report, Rig

TRAIN = WORKERS / "fsdp_state.py"
PRELOAD = ["--preload=torch,torch._dynamo"]
"""Imports of the first DTensor, else each worker makes them."""


def digests(*agents: Agent, event: str = "done") -> set[str]:
    """Of the states that the ranks of these nodes have reported."""
    return {report["digest"] for agent in agents for report in agent.reports(event)}


def finish(hold: Path, *agents: Agent) -> None:
    hold.touch()
    for agent in agents:
        assert agent.exit_code() == 0, agent.output
    assert len(digests(*agents)) == 1


@pytest.mark.timeout(300)
def test_a_worker_that_is_killed_costs_no_step_and_no_bit(rig: Rig, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    command = ["--standalone", "--nproc_per_node=2", "--max_restarts=1", *PRELOAD, TRAIN, "--steps=8"]
    hurt = rig.run(*command, "--at=5", "--hold", hold, env=WARM)
    hurt.wait_for_report("holding", count=2)
    hurt.kill_worker(1)
    began = hurt.wait_for_report("began", count=4)[2:]
    assert [(report["tier"], report["step"]) for report in began] == [("memory", 5)] * 2
    finish(hold, hurt)
    alone = rig.run(*command, env=WARM)
    assert alone.exit_code() == 0, alone.output
    assert digests(alone) == digests(hurt)


@pytest.mark.variant
@pytest.mark.timeout(300)
def test_the_parts_of_a_lost_node_come_from_their_last_replicas(
    rig: Rig, tmp_path: Path, file_rendezvous: list[str]
) -> None:
    hold, mark = tmp_path / "hold", f"state-{uuid.uuid4().hex}"
    command = ["--nnodes=2", "--nproc_per_node=2", *PRELOAD, *file_rendezvous, TRAIN, "--steps=8", "--mark", mark]
    command += ["--replicate-every=3", "--at=3", "--replicated", "--then=5", "--hold", hold]
    nodes = [rig.run(*command, env=WARM) for _ in range(2)]
    for node in nodes:
        node.wait_for_report("holding", count=2, step=5)
        names = {name for pid, name in memory_files(mark) if pid == node.pid}
        assert {f"/memfd:{mark}/{rank}/replica/0/0" for rank in (0, 1)} <= names
    replicated = digests(*nodes, event="replicated")
    nodes.pop(0).kill_node()  # the survivor's ranks come first from here on: each has the number of one that was lost
    [survivor] = nodes
    newcomer = rig.run(*command, env=WARM)
    began = [*newcomer.wait_for_report("began", count=2), *survivor.wait_for_report("began", count=4)[2:]]
    assert {(report["step"], report["digest"]) for report in began} == {(3, *replicated)}
    assert [report["tier"] for report in began] == ["peer"] * 2 + ["memory"] * 2
    finish(hold, survivor, newcomer)
    assert list(memory_files(mark)) == []


@pytest.mark.timeout(300)
def test_parts_are_made_anew_when_nodes_join_and_leave(rig: Rig, tmp_path: Path, file_rendezvous: list[str]) -> None:
    over = tmp_path / "over"
    flags = ["--nnodes=1:2", "--preemption_grace=60", *PRELOAD, *file_rendezvous]
    job = [TRAIN, "--steps=1000000", "--replicate-every=1000000", "--endless", "--hold", over]
    large = rig.run(*flags, "--nproc_per_node=2", *job, env=WARM)
    large.wait_for_report("step", count=4)
    small = rig.run(*flags, "--nproc_per_node=1", *job, env=WARM)
    began = [*small.wait_for_report("began", world=3), *large.wait_for_report("began", count=2, world=3)]
    assert came_to(*began) == came_to(*large.reports("stopped", world=2)), "of two ranks and of three"
    small.wait_for_report("step", count=2)
    large.signal(signal.SIGTERM)
    [one] = small.wait_for_report("began", world=1)
    stopped = [*small.wait_for_report("stopped"), *large.wait_for_report("stopped", count=2, world=3)]
    assert came_to(one) == came_to(*stopped), "and of one"
    assert [report["tier"] for report in small.reports("began")] == ["peer", "memory"]
    finish(over, small)


def came_to(*reports: Report) -> tuple[int, str]:
    """The step and the state that all of them name."""
    [facts] = {(report["step"], report["digest"]) for report in reports}
    return facts
