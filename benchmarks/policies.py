"""The time that failure policies and progress patterns add to the recovery of a killed worker.

Jobs with and without them run in turn; in each, a worker is killed a few times. In both kinds of job the workers print
as many lines: those of one kind are steps and checkpoints, which the job's own patterns match, those of the other match
no pattern.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from rig import Rig

from benchmarks.jobs import WARM, Job, Launcher, Setting
from benchmarks.launchers import PAGE
from benchmarks.processes import cpu_seconds
from benchmarks.scenes import SETTLE, SHORT, kill_worker
from benchmarks.tables import cell, paragraphs, replaced, table

BEGIN, END = "<!-- policies: written by benchmarks/policies.py -->", "<!-- end of policies -->"
PAIRS = 6
KILLS = 5
"""In one job."""
POLICIES = (
    "nan_loss=stop,classification=2,no_progress=32,budget=32/1h,preemptions=32/1h,quarantine=32/1h:30m,backoff=off"
)
"""All that judge, with limits that this many kills do not reach; a back-off is a delay that is asked for."""
WITHOUT = Launcher(
    "without", (*WARM.command, "--no_plugin=policies"), worker=("--prints", "a line, {n}", "another, {n}")
)
WITH = Launcher(
    "with",
    (
        *WARM.command,
        f"--failure_policy={POLICIES}",
        r"--progress_pattern=step (?P<step>\d+) loss (?P<loss>\S+)",
        r"--checkpoint_pattern=saved checkpoint of step (?P<step>\d+)",
    ),
    worker=("--prints", "step {n} loss 0.5", "saved checkpoint of step {n}"),
)
SETTINGS = {
    "a worker is killed: one node, two workers": Setting((2,)),
    "a worker is killed: one node, two workers, `--nnodes=1:2`": Setting((2,), "1:2"),
}


def recoveries(launcher: Launcher, setting: Setting, kills: int) -> list[tuple[float, float]]:
    """Return for each kill in one job the seconds until all ranks are in an all-reduce again, and the agent's CPU time.

    Raises:
        TimeoutError: The job did not come up, or did not recover.
    """
    with tempfile.TemporaryDirectory(prefix="elastic-bench-") as folder, ExitStack() as stack:
        rig = Rig(Path(folder))
        stack.callback(rig.destroy)
        job = Job(launcher, setting, rig)
        if not job.bring_to(1):
            raise TimeoutError(f"the job {launcher.name!r} did not come up:\n" + "\n".join(job.nodes[0].lines[-20:]))
        job.patience = SHORT
        found = []
        for _ in range(kills):
            time.sleep(SETTLE)
            spent = cpu_seconds(job.nodes[0].pid)
            (seconds,) = kill_worker(job)
            if seconds is None:
                raise TimeoutError(f"the job {launcher.name!r} ended:\n" + "\n".join(job.nodes[0].lines[-20:]))
            found.append((seconds, cpu_seconds(job.nodes[0].pid) - spent))
        return found


def main() -> None:
    """Measure all pairs, and write the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--pairs", type=int, default=PAIRS, help=f"of jobs, for each setting [{PAIRS}]")
    arguments.add_argument("--kills", type=int, default=KILLS, help=f"in each job [{KILLS}]")
    given = arguments.parse_args()
    rows = []
    for title, setting in SETTINGS.items():
        samples: dict[str, list[tuple[float, float]]] = {WITHOUT.name: [], WITH.name: []}
        for pair in range(given.pairs):
            for launcher in (WITHOUT, WITH) if pair % 2 == 0 else (WITH, WITHOUT):
                samples[launcher.name] += (found := recoveries(launcher, setting, given.kills))
                said = ", ".join(f"{1000 * seconds:.0f} ({1000 * spent:.0f})" for seconds, spent in found)
                print(f"{title}, {launcher.name}: {said} ms", flush=True)
        for name, place in ((title, 0), ("... CPU time of the agent", 1)):
            off, on = ([sample[place] for sample in values] for values in samples.values())
            quarters = statistics.quantiles([1000 * (two - one) for one, two in zip(off, on, strict=True)], n=4)
            difference = f"{quarters[1]:+.0f} ms ({quarters[0]:+.0f}..{quarters[2]:+.0f})"
            rows.append([name, cell(off), cell(on), difference])
    head = (
        f"{os.cpu_count()} cores, Python {platform.python_version()}; medians with the least and the greatest of "
        f"{given.pairs * given.kills} kills in {given.pairs} pairs of jobs. The difference is that of a kill and the "
        "one in its place in the other job of the pair: the median, and both quartiles."
    )
    written = paragraphs([head], table(["", "without", "with", "difference"], rows))
    print("\n".join(written))
    PAGE.write_text(replaced(PAGE.read_text(), BEGIN, END, written))


if __name__ == "__main__":
    main()
