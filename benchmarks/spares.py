"""The time that a job of two nodes is without its second node: a warm spare waits, or a node is launched when one dies.

The two are measured in turn. The time runs from the death until every rank has finished an all-reduce in the next
round.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rig import Agent, Rig, descendants

from benchmarks.jobs import WARM, Job, Setting
from benchmarks.launchers import PAGE
from benchmarks.scenes import SETTLE
from benchmarks.tables import Samples, cell, paragraphs, replaced, table

RUNS = 5
SPARE, LAUNCHED = "a warm spare waits", "a node is launched then"
BEGIN, END = "<!-- spares: written by benchmarks/spares.py -->", "<!-- end of spares -->"
LAUNCHER = replace(WARM, command=(*WARM.command, "--spares=1"))


def kill_processes(node: Agent) -> None:
    """Kill all processes of a node; its host lives, and the next look at its slot shows that it is gone."""
    for pid in [node.pid, *descendants(node.pid)]:
        os.kill(pid, signal.SIGKILL)
    node.process.wait()


DEATHS: dict[str, tuple[Callable[[Agent], None], bool]] = {
    "its processes are killed": (kill_processes, False),
    "its machine is gone; collectives fail": (Agent.vanish, False),
    "its machine is gone; workers only block": (Agent.vanish, True),
}
"""The end of the node, and whether the workers of the other one block then."""


def without_node(death: str, *, spare: bool) -> float | None:
    """Return the seconds until both ranks work again; None if that does not come."""
    kill, deaf = DEATHS[death]
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(Path(folder))
        try:
            job = Job(LAUNCHER, Setting((1, 1, 1), "2"), rig)
            if not job.bring_to(2):
                return None
            waiting = [job.start_node()] if spare else []
            for node in waiting:
                node.wait_for("waits as a spare")
                job.nodes.remove(node)
            time.sleep(SETTLE)
            if deaf:
                job.deaf.touch()
            killed = time.monotonic()
            kill(job.nodes.pop())
            if spare:
                job.nodes += waiting
            else:
                job.start_node()
            return job.all_reduced(killed)
        finally:
            rig.close()


def main() -> None:
    """Measure both in turn, and write the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=RUNS)
    runs = arguments.parse_args().runs
    found: dict[tuple[str, str], Samples] = {(death, how): [] for death in DEATHS for how in (SPARE, LAUNCHED)}
    for _ in range(runs):
        for death, how in found:
            seconds = without_node(death, spare=how == SPARE)
            found[death, how] = [*found[death, how], seconds]
            print(f"{death}, {how}: {seconds}", flush=True)
    rows = [[death, *(cell(found[death, how]) for how in (SPARE, LAUNCHED))] for death in DEATHS]
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    head = f"{machine}; medians of {runs} pairs, and the least and the greatest."
    written = paragraphs([head], table(["a node of two dies", SPARE, LAUNCHED], rows))
    print("\n".join(written))
    PAGE.write_text(replaced(PAGE.read_text(), BEGIN, END, written))


if __name__ == "__main__":
    main()
