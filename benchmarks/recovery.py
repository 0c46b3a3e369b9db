"""How long until all ranks are in an all-reduce: after a launch, a kill, a loss, an arrival. Elastic beside torchrun.

``make bench`` runs it and rewrites the table in ``docs/performance.md``. Both launchers run the same worker
(``tests/workers/allreduce.py``), in turn, on one host. Every time is taken outside of them, on one monotonic clock,
from the kill (or start) to the moment when the last rank has finished its first all-reduce.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from stage import WORKERS, Agent, Stage, free_port

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- recovery: written by benchmarks/recovery.py -->", "<!-- end of recovery -->"
PATIENCE = 90.0
"""Seconds after which a recovery counts as one that never comes."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """One of the two that are compared."""

    name: str
    command: tuple[str, ...]


LAUNCHERS = (
    Launcher("elastic", (sys.executable, "-m", "elastic_core", "run")),
    Launcher("torchrun", (sys.executable, "-m", "torch.distributed.run")),
)


class Job:
    """A job of one launcher, and the clock."""

    def __init__(self, launcher: Launcher, stage: Stage, *flags: str) -> None:
        self._command = [*launcher.command, *flags, "--max_restarts=3"]
        self._script = [str(WORKERS / "allreduce.py"), "--until", str(stage.folder / "never")]
        self._stage = stage

    def start(self, *flags: str) -> Agent:
        """Start one node."""
        return self._stage.start([*self._command, *flags, *self._script])

    def all_reduced(self, since: float, ranks: int) -> float | None:
        """Seconds from ``since`` until all ranks have finished an all-reduce of ``ranks``; None if they never do."""

        agents = self._stage.agents

        def times() -> list[float]:
            reports = [report for agent in agents for report in agent.reports("training", world_size=ranks)]
            return [report["at"] for report in reports if report["at"] > since]

        self._stage.wait_until(lambda: len(times()) >= ranks or all(agent.ended for agent in agents), PATIENCE)
        return max(times()) - since if len(times()) >= ranks else None


def launch(launcher: Launcher, stage: Stage) -> float | None:
    """One node with two workers."""
    job = Job(launcher, stage, "--standalone", "--nproc_per_node=2")
    started = time.monotonic()
    job.start()
    return job.all_reduced(started, 2)


def worker_killed(launcher: Launcher, stage: Stage) -> float | None:
    """The same, running; one worker is killed with SIGKILL."""
    job = Job(launcher, stage, "--standalone", "--nproc_per_node=2")
    agent = job.start()
    job.all_reduced(0.0, 2)
    killed = time.monotonic()
    agent.kill_worker(1)
    return job.all_reduced(killed, 2)


def over_c10d(nnodes: str) -> tuple[str, ...]:
    """Two nodes on this host, over each launcher's own c10d."""
    return (f"--nnodes={nnodes}", "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{free_port()}", "--rdzv_id=bench")


HOST, GUEST = "--rdzv_conf=is_host=true", "--rdzv_conf=is_host=false"


def worker_killed_of(nnodes: str) -> Callable[[Launcher, Stage], float | None]:
    """Two nodes with a worker each; one worker is killed."""

    def measure(launcher: Launcher, stage: Stage) -> float | None:
        job = Job(launcher, stage, *over_c10d(nnodes))
        job.start(HOST)
        guest = job.start(GUEST)
        if job.all_reduced(0.0, 2) is None:
            return None
        [rank] = guest.workers()
        killed = time.monotonic()
        guest.kill_worker(rank)
        return job.all_reduced(killed, 2)

    return measure


def node_lost(launcher: Launcher, stage: Stage) -> float | None:
    """Two nodes of ``1:2``; every process of one is killed at once. Until the other trains alone."""
    job = Job(launcher, stage, *over_c10d("1:2"))
    job.start(HOST)
    guest = job.start(GUEST)
    if job.all_reduced(0.0, 2) is None:
        return None
    killed = time.monotonic()
    guest.kill_node()
    return job.all_reduced(killed, 1)


def node_joins(launcher: Launcher, stage: Stage) -> float | None:
    """One node of ``1:2`` trains; a second is started. Until both train."""
    job = Job(launcher, stage, *over_c10d("1:2"))
    job.start(HOST)
    if job.all_reduced(0.0, 1) is None:
        return None
    started = time.monotonic()
    job.start(GUEST)
    return job.all_reduced(started, 2)


SCENES: Sequence[tuple[str, Callable[[Launcher, Stage], float | None]]] = (
    ("one node starts, two workers", launch),
    ("a worker is killed, one node", worker_killed),
    ("a worker is killed, two nodes, `--nnodes=2`", worker_killed_of("2")),
    ("a worker is killed, two nodes, `--nnodes=1:2`", worker_killed_of("1:2")),
    ("a node is lost, `--nnodes=1:2`", node_lost),
    ("a node joins, `--nnodes=1:2`", node_joins),
)


def measure(scene: Callable[[Launcher, Stage], float | None], launcher: Launcher) -> float | None:
    """One run in a folder of its own, of which nothing is left."""
    with tempfile.TemporaryDirectory(prefix="elastic-bench-") as folder:
        stage = Stage(Path(folder))
        try:
            return scene(launcher, stage)
        finally:
            stage.destroy()


def cell(times: Sequence[float | None]) -> str:
    """The median with its range, as the table shows it; runs that never recovered are told apart."""
    came = [seconds for seconds in times if seconds is not None]
    if not came:
        return f"never ({PATIENCE:.0f} s)"
    spread = f"{statistics.median(came):.1f} s ({min(came):.1f} to {max(came):.1f})"
    return spread if len(came) == len(times) else f"{spread}; {len(times) - len(came)} of {len(times)} never"


def page(table: Sequence[str], runs: int) -> str:
    """The section of the page that this program writes."""
    host = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    torch = f"torch {version('torch')}, gloo on loopback"
    how = f"Median of {runs} runs each, with the shortest and the longest. {host}, {torch}."
    return "\n".join([BEGIN, "", how, "", *table, "", END])


def main() -> None:
    """Measure every scene with both launchers in turn, and write the page."""
    parser = argparse.ArgumentParser(description="Measure recoveries of elastic and torchrun.")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="only scenes whose title contains this; the page stays as it is")
    args = parser.parse_args()
    table = ["| until all ranks are in an all-reduce | elastic | torchrun |", "|---|---|---|"]
    for title, scene in SCENES:
        if args.only not in title:
            continue
        times: dict[str, list[float | None]] = {launcher.name: [] for launcher in LAUNCHERS}
        for _ in range(args.runs):
            for launcher in LAUNCHERS:
                times[launcher.name].append(measure(scene, launcher))
        table.append(f"| {title} | {cell(times['elastic'])} | {cell(times['torchrun'])} |")
        print(table[-1], flush=True)
    if not args.only:
        text = PAGE.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        PAGE.write_text(before + page(table, args.runs) + after)


if __name__ == "__main__":
    main()
