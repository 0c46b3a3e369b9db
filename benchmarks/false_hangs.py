"""Count false reports of hangs in healthy jobs: trainings with long pauses, for an hour unless told otherwise.

Each job has two nodes of two ranks over gloo, with the default window, whose least time is set to ``--window`` so that
an hour holds many of them; one more job has the real default. Most of the time every process sleeps. ``hang`` is the
control, which must be reported. With ``--forms`` the jobs are the forms of work of ``waiting``,
on one node of two ranks each: rank 1 works so for ten windows, with ``--hang_timeout``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rig import WORKERS
from waiting import COMPUTING, WRITING, program

from benchmarks.tables import table
from elastic_hangs.watch import LEAST_WINDOW_SECONDS

LAUNCH = """
import sys
from elastic_core.cli.main import main
from elastic_hangs import watch
watch.LEAST_WINDOW_SECONDS = float(sys.argv.pop(1))
sys.exit(main())
"""
HOWS = "slow_steps", "slower_steps", "long_evaluation", "long_first_step", "loader", "checkpoint", "hang"
CONTROL = "hang"
MANY_WINDOWS = 10  # for which a form of work lasts


@dataclass(slots=True)
class PausingJob:
    """A job, and what its first node reports."""

    how: str
    window: float
    prints: bool  # whether rank 0 prints its steps, so that they are known
    nodes: list[subprocess.Popen[str]] = field(default_factory=list)
    events: Path = Path()

    @property
    def name(self) -> str:
        """As the table shows it."""
        return f"{self.how}, {'steps known' if self.prints else 'silent'}, window {self.window:g} s"

    def start(self, folder: Path, minutes: float) -> None:
        """Start both nodes."""
        folder.mkdir()
        self.events = folder / "events.0"
        script = [str(WORKERS / "pauses.py"), f"--how={self.how}", f"--window={self.window}", f"--minutes={minutes}"]
        flags = ["--nnodes=2", "--nproc_per_node=2", "--event_log=console", "--verbose"]
        where = ["--rdzv_backend=file", f"--rdzv_endpoint={folder / 'store'}", f"--rdzv_id={self.how}"]
        command = [sys.executable, "-c", LAUNCH, str(self.window), "run", *flags, *where, *script]
        environment = os.environ | {"PAUSES_PRINT": str(int(self.prints)), "OMP_NUM_THREADS": "1"}
        for node in range(2):
            with (folder / f"events.{node}").open("w") as out:
                self.nodes.append(
                    subprocess.Popen(
                        command, stdout=out, stderr=subprocess.STDOUT, text=True, env=environment, cwd=folder
                    )
                )

    def counts(self) -> Counter[str]:
        """Return how often each event was reported."""
        return Counter(
            str(found.get("name") or found.get("event")) for found in map(_parse, self.events.open()) if found
        )

    def hangs(self) -> Iterator[dict[str, Any]]:
        """Yield the reports of hangs."""
        return (found for found in map(_parse, self.events.open()) if found and found.get("name") == "hang")


@dataclass(slots=True)
class Form(PausingJob):
    """A job in which a rank works for long in one of the usual forms, which ends by itself."""

    def start(self, folder: Path, minutes: float) -> None:
        """Start its one node."""
        folder.mkdir()
        self.events, script = folder / "events.0", folder / "train.py"
        script.write_text(program(self.how, MANY_WINDOWS * self.window))
        flags = ["--nproc_per_node=2", f"--hang_timeout={self.window:g}", "--max_restarts=0", "--event_log=console"]
        command = [sys.executable, "-m", "elastic_core", "run", *flags, str(script)]
        with self.events.open("w") as out:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            self.nodes.append(
                subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, text=True, env=environment, cwd=folder)
            )


def _parse(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def jobs(window: float) -> Sequence[PausingJob]:
    """All jobs of a run."""
    return [
        *(PausingJob(how, window, prints=True) for how in HOWS),
        *(
            PausingJob(how, window, prints=False)
            for how in ("long_evaluation", "long_first_step", "loader", "checkpoint")
        ),
        PausingJob("long_evaluation", LEAST_WINDOW_SECONDS, prints=True),
    ]


def main() -> int:
    """Run all jobs at once, print a table, and return 1 if a healthy job was reported, or the control was not."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--minutes", type=float, default=60.0)
    arguments.add_argument("--window", type=float, default=15.0, help="seconds, for the least window")
    arguments.add_argument("--only", default="", help="a part of the name of the jobs that are run")
    arguments.add_argument("--forms", action="store_true", help="the forms of work that end by themselves")
    given = arguments.parse_args()
    forms = [Form(how, given.window, prints=False) for how in (*COMPUTING, *WRITING)]
    every = [job for job in (forms if given.forms else jobs(given.window)) if given.only in job.name]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="elastic-false-hangs-")))
        for number, job in enumerate(every):
            job.start(folder / str(number), given.minutes)
            for node in job.nodes:
                stack.callback(node.terminate)
            time.sleep(2.0)  # the imports of one after the other's
        rows, wrong = [], 0
        for job in every:
            control = job.how == CONTROL
            codes = [node.poll() if control else node.wait() for node in job.nodes]
            seen = job.counts()
            reported = any(found["fields"]["rank"] is not None for found in job.hangs())
            wrong += reported is not control or (not control and any(codes))
            rows.append([job.name, str(seen["stacks"]), str(seen["hang"]), str(codes)])
            for found in job.hangs():
                print(job.name, found["message"], sep="\n", file=sys.stderr)
        header = ["job", "suspicions that were dropped", "reports of a hang", "exit codes"]
        print(*table(header, rows), sep="\n", flush=True)
        for job in every:
            for node in job.nodes:
                node.terminate()
        for job in every:
            for node in job.nodes:
                node.wait()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
