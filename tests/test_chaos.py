"""Anything at any time: a job of three nodes is hurt again and again, by lot, and always comes back whole."""

from __future__ import annotations

import contextlib
import random
import signal
from pathlib import Path

import pytest
from rig import WORKERS, Agent, Report, Rig

NPROC = 2
MOST = 3


class Job:
    """The agents that should be alive, and what must be true of them."""

    def __init__(self, rig: Rig, command: list[object]) -> None:
        self.rig = rig
        self.command = command
        self.alive: list[Agent] = []

    def add(self) -> None:
        self.alive.append(self.rig.run(*self.command))

    def steps(self, agents: list[Agent]) -> list[Report]:
        return [report for agent in agents for report in agent.reports("training")]

    def stores(self) -> set[str]:
        return {report["store"] for report in self.steps(self.rig.agents)}

    def whole(self, before: set[str]) -> bool:
        """Return True if all who should be alive train together, in a round that came after those of ``before``."""
        newest = [agent.reports("training")[-NPROC:] for agent in self.alive]
        if any(len(reports) < NPROC for reports in newest):
            return False
        last = [report for reports in newest for report in reports]
        sizes, stores = {r["world_size"] for r in last}, {r["store"] for r in last}
        return sizes == {NPROC * len(self.alive)} and len(stores) == 1 and not stores & before

    def check_rounds(self) -> None:
        """Each round has its own store; in none do two workers hold one rank, or disagree on the world size."""
        rounds: dict[str, list[Report]] = {}
        for report in self.steps(self.rig.agents):
            rounds.setdefault(report["store"], []).append(report)
        for reports in rounds.values():
            assert len({r.rank for r in reports}) == len(reports), reports
            assert len({r["world_size"] for r in reports}) == 1, reports


def disturb(job: Job, lots: random.Random) -> str:
    """Do one thing to the job; say which."""
    victim = lots.choice(job.alive)
    choices = ["worker"]
    if len(job.alive) > 1:
        choices += ["node", "agent", "leave"]
    if len(job.alive) < MOST:
        choices += ["add"]
    choice = lots.choice(choices)
    match choice:
        case "worker":
            with contextlib.suppress(LookupError, ProcessLookupError):  # they are being restarted as it is
                victim.kill_worker(lots.choice(sorted(victim.workers())))
        case "add":
            job.add()
        case "node":
            victim.kill_node()
        case "agent":
            victim.signal(signal.SIGKILL)
        case "leave":
            victim.signal(signal.SIGTERM)
    if choice in ("node", "agent", "leave"):
        job.alive.remove(victim)
    return choice


@pytest.mark.timeout(600)
def test_the_job_always_comes_back_whole(rig: Rig, file_rendezvous: list[str], tmp_path: Path, seed: int) -> None:
    lots = random.Random(seed)
    done = tmp_path / "done"
    deaf = lots.choice([[], ["--deaf"]])
    flags = [f"--nnodes=1:{MOST}", f"--nproc_per_node={NPROC}", "--max_restarts=100", "--shutdown_timeout=1"]
    job = Job(rig, [*flags, *file_rendezvous, WORKERS / "barrier.py", "--until", done, *deaf])
    before: set[str] = set()
    job.add()
    story = ["add"]
    for _ in range(4):
        whole = rig.wait_until(lambda before=before: job.whole(before))  # type: ignore[misc]  # mypy cannot infer it
        assert whole, f"after {story}:\n" + "\n\n".join(agent.output for agent in job.alive)
        before = job.stores()
        story.append(" and ".join(disturb(job, lots) for _ in range(lots.choice([1, 1, 2]))))
    assert rig.wait_until(lambda: job.whole(before)), f"after {story}"
    done.touch()
    assert [agent.exit_code() for agent in job.alive] == [0] * len(job.alive), story
    job.check_rounds()
