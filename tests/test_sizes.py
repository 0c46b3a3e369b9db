"""Jobs that run on some numbers of nodes only, and nodes that wait for a place, over real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rig import WORKERS, Agent, Rig


@pytest.fixture
def done(tmp_path: Path) -> Path:
    return tmp_path / "done"


def test_of_three_nodes_two_train_and_the_third_says_why_it_waits_until_there_are_four(
    rig: Rig, file_rendezvous: list[str], done: Path
) -> None:
    job = [WORKERS / "barrier.py", "--until", done]
    command = ["--nnodes=2,4", "--rdzv_conf=resize_wait=0", *file_rendezvous, *job]
    agents = [rig.run(*command), rig.run(*command)]
    for agent in agents:
        agent.wait_for_report("training", world_size=2)
    third = rig.run(*command)
    third.wait_for("2 of 3 nodes train: --nnodes=2,4 has no size 3; this node waits as a spare")
    status = subprocess.run(
        [sys.executable, "-m", "elastic_core", "status", *file_rendezvous], capture_output=True, text=True, check=True
    )
    assert "  waiting   1 node(s): 2 of 3 nodes train: --nnodes=2,4 has no size 3" in status.stdout
    agents += [third, rig.run(*command)]
    for agent in agents:
        agent.wait_for_report("training", world_size=4)
    done.touch()
    assert [agent.exit_code() for agent in agents] == [0, 0, 0, 0]
    assert not any(agent.reports("training", world_size=3) for agent in agents)


@pytest.mark.variant
def test_of_seven_nodes_six_train_and_of_five_four(rig: Rig, file_rendezvous: list[str], done: Path) -> None:
    job = [WORKERS / "barrier.py", "--until", done]
    command = ["--nnodes=4,6,8", "--rdzv_conf=resize_wait=0", *file_rendezvous, *job]
    agents = [rig.run(*command) for _ in range(7)]
    why = "6 of 7 nodes train: --nnodes=4,6,8 has no size 7; this node waits as a spare"

    def waits() -> list[Agent]:
        return [agent for agent in agents if why in agent.output]

    assert rig.wait_until(waits), agents[0].output
    (spare,) = waits()
    members = [agent for agent in agents if agent is not spare]
    for agent in members:
        agent.wait_for_report("training", world_size=6)
    members.pop().kill_node()
    spare.wait_for_report("training", world_size=6)
    members.append(spare)
    before = {agent.pid: len(agent.reports("training", world_size=4)) for agent in members}
    members.pop(1).kill_node()

    def of_four() -> list[Agent]:
        return [agent for agent in members if len(agent.reports("training", world_size=4)) > before[agent.pid]]

    assert rig.wait_until(lambda: len(of_four()) == 4), members[0].output
    (out,) = [agent for agent in members if agent not in of_four()]
    out.wait_for("4 of 5 nodes train: --nnodes=4,6,8 has no size 5; this node waits as a spare")
    done.touch()
    assert [agent.exit_code() for agent in members] == [0] * 5
    assert not any(agent.reports("training", world_size=5) for agent in agents)


def test_a_spare_takes_the_place_of_a_dead_node(rig: Rig, file_rendezvous: list[str], done: Path) -> None:
    job = [WORKERS / "barrier.py", "--until", done]
    command = ["--nnodes=2", "--spares=1", *file_rendezvous, *job]
    first, second = rig.run(*command), rig.run(*command)
    for agent in (first, second):
        agent.wait_for_report("training", world_size=2)
    spare = rig.run(*command)
    spare.wait_for(
        "the job has all 2 node.s. that it takes: this node waits as a spare, to take the place of a lost one"
    )
    more = rig.run(*command)
    more.wait_for("waits as a spare")
    second.kill_node()
    spare.wait_for_report("training", world_size=2)
    done.touch()
    assert [agent.exit_code() for agent in (first, spare, more)] == [0, 0, 0]
    assert not more.reports("training"), "it came later"


def test_a_job_of_one_node_may_have_a_spare_without_an_id(rig: Rig, done: Path, tmp_path: Path) -> None:
    where = ["--rdzv_backend=file", f"--rdzv_endpoint={tmp_path / 'meeting'}"]
    command = ["--nnodes=1", "--spares=1", *where, WORKERS / "barrier.py", "--until", done]
    first = rig.run(*command)
    first.wait_for_report("training", world_size=1)
    spare = rig.run(*command)
    spare.wait_for("waits as a spare")
    first.kill_node()
    spare.wait_for_report("training", world_size=1)
    done.touch()
    assert spare.exit_code() == 0


def test_nodes_that_differ_in_sizes_are_refused(rig: Rig, file_rendezvous: list[str], done: Path) -> None:
    job = [WORKERS / "barrier.py", "--until", done]
    first = rig.run("--nnodes=1,3", *file_rendezvous, *job)
    first.wait_for_report("training", world_size=1)
    other = rig.run("--nnodes=1:3", *file_rendezvous, *job)
    assert other.exit_code() == 76
    assert "they differ in sizes: none here, 1, 3 there" in other.output
    done.touch()
    assert first.exit_code() == 0
