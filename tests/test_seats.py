"""Rule S8 among real agents of one host: nobody waits ten minutes for the fence of who has gone from its seat."""

from __future__ import annotations

import os
import signal
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from stage import WORKERS, Agent, Stage, descendants, name_of

from elastic_core.agent.identity import Seat


@pytest.fixture
def name() -> str:
    """A job that nobody else on this host has, and so with all its seats free."""
    return f"seats-{uuid.uuid4().hex}"


@pytest.fixture
def command(name: str, tmp_path: Path) -> list[object]:
    """One node at a time, and whoever comes besides waits."""
    rendezvous = ["--rdzv_backend=file", f"--rdzv_endpoint={tmp_path / 'rdzv'}", f"--rdzv_id={name}"]
    return [*rendezvous, WORKERS / "barrier.py", "--until", tmp_path / "done"]


def trains(agent: Agent) -> None:
    agent.wait_for_report("training", world_size=1)


def finishes(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "done").touch()
    assert agent.exit_code() == 0, agent.output


def test_of_a_seat_that_it_finds_free_a_new_agent_says_so(
    stage: Stage, name: str, command: list[object], tmp_path: Path
) -> None:
    """It gets a lower one than the agent had that is gone, where others had those at that time."""
    with closing(Seat.take(name)):
        first = stage.run(*command)
        trains(first)
    first.kill_node()
    second = stage.run(*command)
    trains(second)
    assert "(agent 2)" in first.output
    assert f"as {os.uname().nodename}\n" in second.output, "it has the first seat"
    finishes(second, tmp_path)


def test_a_new_agent_goes_on_when_the_last_process_of_the_old_one_is_gone(
    stage: Stage, command: list[object], tmp_path: Path
) -> None:
    """The warden takes its time; until then its workers may be training."""
    first = stage.run(*command)
    trains(first)
    [warden] = [pid for pid in descendants(first.pid) if name_of(pid) == "elastic-warden"]
    os.kill(warden, signal.SIGSTOP)
    first.signal(signal.SIGKILL)
    second = stage.run(*command)
    second.wait_for("which may still be training, to answer or be fenced off")
    assert not second.reports("training")
    os.kill(warden, signal.SIGCONT)
    trains(second)
    finishes(second, tmp_path)


def test_a_spare_beside_a_node_that_vanishes_takes_its_place(
    stage: Stage, command: list[object], tmp_path: Path
) -> None:
    first = stage.run(*command)
    trains(first)
    spare = stage.run(*command)
    spare.wait_for("the job has all 1 node")
    first.kill_node()
    trains(spare)
    finishes(spare, tmp_path)
