"""Kills at random moments, warm: workers, agents, fork servers, stores. The job goes on, and nothing is left of it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest
from rig import PATIENCE, WARM, WORKERS, Agent, Rig, over
from wardens import wait_until

KILLS = 7
"""A run's; with the three seeds of everyday runs that makes 21, with the hundred of ``make soak`` 700."""
NPROC = 2
VICTIMS = {
    "fork_server": ["elastic: fork server"],
    "store": ["elastic: service", "elastic_warmstart.worker_store"],
    "worker": ["allreduce.py"],
}
"""The common part of the command lines of each kind; an agent is known by its pid."""
SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Return the folder of the job's temporary files."""
    path = tmp_path / "tmp"
    path.mkdir()
    return path


class Job:
    """Up to two nodes that train until the file ``done`` is there."""

    def __init__(self, rig: Rig, temporary: Path, flags: list[str]) -> None:
        self.done = temporary.parent / "done"
        self.rig = rig
        self.command = [*flags, *over("file", temporary.parent), WORKERS / "allreduce.py", "--until", self.done]
        self.env = {**WARM, "TMPDIR": str(temporary)}
        self.alive: list[Agent] = []
        self.story: list[str] = []

    def add(self) -> None:
        self.alive.append(self.rig.run(*self.command, env=self.env))

    def kill(self, kind: str, victim: Agent) -> None:
        """Kill one of that kind, if it is there at this moment."""
        self.story.append(kind)
        if kind == "agent":
            victim.signal(signal.SIGKILL)
            self.alive.remove(victim)
            return
        with contextlib.suppress(ProcessLookupError):
            for pid in victim.named(*VICTIMS[kind])[-1:]:
                os.kill(pid, signal.SIGKILL)

    def whole(self) -> bool:
        """Return True if the newest reports of all workers that should be alive are of one round, that lives."""
        newest = [report for agent in self.alive for report in agent.reports("training")[-NPROC:]]
        size = NPROC * len(self.alive)
        if len(newest) < size or {report["world_size"] for report in newest} != {size}:
            return False
        rounds = {(report["store"], report["restart_count"]) for report in newest}
        return len(rounds) == 1 and all(Path("/proc", str(report["pid"])).exists() for report in newest)

    def described(self) -> str:
        return f"after {self.story}:\n" + "\n\n".join(agent.output for agent in self.rig.agents)


def files(folder: Path) -> list[str]:
    """Return the files that are left there; torch's cache of compiled code is not the job's, and stays by design."""
    return [name for name in os.listdir(folder) if not name.startswith("torchinductor_")]


@pytest.mark.timeout(600)
def test_the_job_goes_on_whatever_is_killed_and_whenever(rig: Rig, temporary: Path, seed: int) -> None:
    lots = random.Random(seed)
    shared = set(os.listdir(SHARED_MEMORY))
    job = Job(rig, temporary, ["--nnodes=1:2", f"--nproc_per_node={NPROC}", "--max_restarts=100", "-v"])
    job.add()
    job.add()
    for _ in range(KILLS):
        if lots.random() < 0.5:  # or else while the job is still busy with what came before
            assert rig.wait_until(job.whole), job.described()
        time.sleep(lots.uniform(0.0, 0.5))
        kind = lots.choice(["worker", "worker", "fork_server", "store", "agent"])
        job.kill(kind, lots.choice(job.alive))
        if kind == "agent":
            job.add()
    assert rig.wait_until(job.whole), job.described()
    restarts = max(report["restart_count"] for agent in job.alive for report in agent.reports("training"))
    assert restarts <= job.story.count("worker"), job.described()
    job.done.touch()
    try:
        codes = [agent.exit_code() for agent in job.alive]
    except AssertionError:  # of one that still runs, perhaps because of another
        pytest.fail(job.described())
    assert codes == [0, 0], job.described()
    assert rig.close() == []
    assert files(temporary) == []

    def left() -> list[str]:
        return [name for name in set(os.listdir(SHARED_MEMORY)) - shared if not name.startswith("sem.mp-")]

    assert wait_until(lambda: not left()), f"shared memory is left: {left()}"


@pytest.mark.timeout(600)
def test_kills_beyond_the_budget_fail_the_job_and_leave_nothing(rig: Rig, temporary: Path, seed: int) -> None:
    lots = random.Random(seed)
    job = Job(rig, temporary, [f"--nproc_per_node={NPROC}", "--max_restarts=2", "-v"])
    job.add()
    [agent] = job.alive
    deadline = time.monotonic() + PATIENCE
    while agent.process.poll() is None and time.monotonic() < deadline:
        time.sleep(lots.uniform(0.0, 0.5))
        job.kill(lots.choice(["worker", "worker", "fork_server", "store"]), agent)
    assert agent.exit_code() == 1, job.described()
    assert "SIGKILL" in agent.output
    assert rig.close() == []
    assert files(temporary) == []
