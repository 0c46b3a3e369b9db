"""A store that loses what it held, under a running job: training goes on, and a failure right after recovers."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rig import WORKERS, Agent, Rig, over


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The job's directory in the store."""
    (tmp_path / "store").mkdir()
    return tmp_path / "store" / "job"


@pytest.fixture
def command(job: Path, tmp_path: Path) -> list[object]:
    script = [WORKERS / "barrier.py", "--until", tmp_path / "done"]
    return ["--nnodes=1:2", "--nproc_per_node=1", "--max_restarts=3", *over("file", job.parent), *script]


@pytest.fixture
def pair(rig: Rig, command: list[object]) -> list[Agent]:
    """Two agents, in a round of both."""
    return started(rig, command)


def started(rig: Rig, command: list[object]) -> list[Agent]:
    """Two agents in a round of both, in the order of their ranks."""
    first = rig.run(*command)
    first.wait_for_report("training", world_size=1)
    agents = [first, rig.run(*command)]
    for agent in agents:
        agent.wait_for_report("training", world_size=2)
    return agents


def lose(job: Path, agents: list[Agent], copy: Path | None = None) -> None:
    """Delete the job's directory, and put a copy in its place, if there is one; faster than its agents mend it."""
    with frozen(agents):
        shutil.rmtree(job)
        if copy is not None:
            shutil.copytree(copy, job)


@contextmanager
def frozen(agents: list[Agent]) -> Iterator[None]:
    """Let them do nothing meanwhile; their workers go on."""
    for agent in agents:
        agent.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, agent.pid, os.WSTOPPED)  # until then some of its threads may go on
    yield
    for agent in agents:
        agent.signal(signal.SIGCONT)


def finish(agents: list[Agent], done: Path) -> None:
    done.touch()
    assert [agent.exit_code() for agent in agents] == [0] * len(agents), agents[0].output


def crash_recovers(agents: list[Agent], restart: int) -> None:
    """A worker is killed, and all workers start again, in one round."""
    agents[1].kill_worker(1)
    for agent in agents:
        agent.wait_for_report("training", world_size=2, restart_count=restart)


def test_a_store_that_comes_back_empty_gets_the_run_back(pair: list[Agent], job: Path, tmp_path: Path) -> None:
    before = [agent.workers() for agent in pair]
    lose(job, pair)
    for agent in pair:
        agent.wait_for("the run goes on")
    assert [agent.workers() for agent in pair] == before, "healthy workers were left alone"
    crash_recovers(pair, 1)
    finish(pair, tmp_path / "done")


def test_a_crash_at_the_very_moment_that_the_store_is_emptied_recovers(
    pair: list[Agent], job: Path, tmp_path: Path
) -> None:
    lose(job, pair)
    crash_recovers(pair, 1)
    finish(pair, tmp_path / "done")


def test_a_store_that_is_put_back_to_an_older_copy_gets_its_last_entries_back(
    rig: Rig, pair: list[Agent], job: Path, tmp_path: Path
) -> None:
    with frozen(pair):  # a file that an agent replaces during the copy is missing
        shutil.copytree(job, tmp_path / "copy")
    crash_recovers(pair, 1)
    before = [agent.workers() for agent in pair]
    entries = {path.name: path.read_bytes() for path in (job / "ledger").iterdir()}
    lose(job, pair, tmp_path / "copy")
    assert rig.wait_until(lambda: any("put back" in agent.output for agent in pair)), pair[0].output
    assert [agent.workers() for agent in pair] == before, "healthy workers were left alone"
    crash_recovers(pair, 2)
    assert {name: (job / "ledger" / name).read_bytes() for name in entries} == entries, "the very same entries"
    finish(pair, tmp_path / "done")


def test_a_newcomer_cannot_bury_a_running_job(
    rig: Rig, pair: list[Agent], command: list[object], job: Path, tmp_path: Path
) -> None:
    """It finds an empty store and opens a run of its own, which the running one outranks."""
    lose(job, pair)
    third = rig.run(*command)
    for agent in pair:
        agent.wait_for("the run goes on")
    crash_recovers(pair, 1)
    finish([*pair, third], tmp_path / "done")


def test_a_run_that_another_has_taken_the_place_of_joins_it(
    rig: Rig, pair: list[Agent], command: list[object], job: Path, tmp_path: Path
) -> None:
    """Its agents saw nothing of it, and could not put their run back in time."""
    before = [agent.workers() for agent in pair]
    with frozen(pair):
        shutil.rmtree(job)
        third = rig.run(*command)
        third.wait_for_report("training", world_size=1)
    for agent in pair:
        agent.wait_for("has begun there since: joining again as a new node")
    third.wait_for_report("training", world_size=2)
    stale = {pid for workers in before for pid in workers.values()}
    assert stale.isdisjoint(pid for agent in pair for pid in agent.workers().values())
    finish([*pair, third], tmp_path / "done")


@pytest.mark.parametrize("known", [True, False], ids=["the run was opened on top of it", "of which the run never knew"])
def test_an_earlier_run_that_was_killed_and_comes_back_with_the_store_stops_nobody(
    rig: Rig, command: list[object], job: Path, tmp_path: Path, known: bool
) -> None:
    """As Redis loads the snapshot of an earlier run of this id, or a stranger writes it there; its nodes are dead."""
    earlier = started(rig, ["--rdzv_conf=run_uid=first", *command])
    crash_recovers(earlier, 1)  # so that its ledger is longer than that of a run which begins anew
    with frozen(earlier):
        shutil.copytree(job, tmp_path / "copy")
    for agent in earlier:
        agent.signal(signal.SIGKILL)
    if not known:
        shutil.rmtree(job)
    agents = started(rig, ["--rdzv_conf=run_uid=second", *command])
    before = [agent.workers() for agent in agents]
    lose(job, agents, tmp_path / "copy")
    for agent in agents:
        agent.wait_for("the run goes on")
        assert "joining again" not in agent.output
    assert [agent.workers() for agent in agents] == before, "healthy workers were left alone"
    crash_recovers(agents, 1)
    finish(agents, tmp_path / "done")
