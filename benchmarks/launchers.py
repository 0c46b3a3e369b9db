"""Elastic beside torchrun: launches, recoveries, joins, losses, and what an idle agent costs.

``make bench`` runs it and rewrites the tables of ``benchmarks/RESULTS.md``, which says how each figure is taken.
``make bench-launchers ARGS="--only=killed --runs=3"`` measures only scenes whose titles contain the word, and leaves
the page alone.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from rig import Rig

from benchmarks import floor, idle
from benchmarks.jobs import ALL, FRESH, PATIENCE, TORCHRUN, WARM, Job, Launcher, Setting, launchers
from benchmarks.scenes import KILLED_ONE, KILLED_REST, LAUNCH, MEMORY, SETTLE, SHORT, STORIES, TIMES, Scene
from benchmarks.tables import figures, median, megabytes, paragraphs, per_hour, replaced, seconds, table
from benchmarks.targets import ratios, targets

PAGE = Path(__file__).with_name("RESULTS.md")
BEGIN, END = "<!-- launchers: written by benchmarks/launchers.py -->", "<!-- end of launchers -->"
RUNS = 5
GIVE_UP = 2
"""A scene that so often never ended for a launcher, and more often than it did, is not repeated for it."""
MINUTES = 24.5
IDLE, FLOOR = "idle agents", "the floor"

Book = defaultdict[str, defaultdict[str, list[float | None]]]
"""Samples by figure and by launcher (or kind of agent), one for each run."""


def book() -> Book:
    """Return an empty one."""
    return defaultdict(lambda: defaultdict(list))


def play(launcher: Launcher, setting: Setting, scenes: Iterable[Scene], record: Book) -> None:
    """One story with one launcher, in folders of its own, of which nothing is left.

    Its scenes share a job for as long as that comes back from what is done to it, and is where the next scene begins.
    """
    with ExitStack() as stack:
        job: Job | None = None
        for scene in scenes:
            if hopeless(scene, launcher, record):
                continue
            if job is None or len(job.nodes) != scene.nodes:
                stack.close()
                job = Job(launcher, setting, _rig(stack))
                if not job.bring_to(scene.nodes):
                    said = "\n".join(line for node in job.nodes for line in node.lines[-5:])
                    say([f"{launcher.name} did not come up for {scene.figures[0]!r}:\n{said}"])
                    job = None
                    continue
            if scene.nodes:
                time.sleep(SETTLE)
            job.patience = scene.patience
            found = scene.act(job)
            for figure, value in zip(scene.figures, found, strict=True):
                record[figure][launcher.name].append(value)
                show = megabytes if scene.figures == MEMORY else seconds
                say([f"{launcher.name}: {figure}: {show(math.inf if value is None else value)}"])
            if None in found:
                job = None


def hopeless(scene: Scene, launcher: Launcher, record: Book) -> bool:
    """Return True if a scene need not be run again: it failed to end often enough, and more often than it ended."""
    names = [other.name for other in ALL if other.command == launcher.command] if scene.alike else [launcher.name]
    samples = [sample for name in names for sample in record[scene.figures[0]][name]]
    nevers = samples.count(None)
    return nevers >= GIVE_UP and nevers > len(samples) / 2


def _rig(stack: ExitStack) -> Rig:
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="elastic-bench-"))
    rig = Rig(Path(folder))
    stack.callback(rig.destroy)
    return rig


def measure_scenes(compared: Sequence[Launcher], runs: int, only: str, deadline: float, record: Book) -> None:
    """Every story with all launchers in turn, ``runs`` times over. What would pass the deadline is left out."""
    took: dict[tuple[int, str], float] = {}
    for run in range(1, runs + 1):
        for number, (setting, scenes) in enumerate(STORIES):
            chosen = [scene for scene in scenes if any(only in figure for figure in scene.figures)]
            for launcher in compared if chosen else ():
                begin = time.monotonic()
                if begin + took.get((number, launcher.name), 0.0) > deadline:
                    say(
                        [f"run {run}: no time is left for {launcher.name} in {chosen[0].figures[0]!r} and what follows"]
                    )
                    continue
                play(launcher, setting, chosen, record)
                took[number, launcher.name] = time.monotonic() - begin
        say([f"run {run} of {runs} is over"])


def measure_idle(compared: Sequence[Launcher], runs: int, record: Book) -> None:
    """Every kind of agent, ``runs`` windows of it."""
    elastic = next((launcher for launcher in reversed(compared) if launcher.name in (WARM.name, FRESH.name)), None)
    kinds = idle.kinds(TORCHRUN, elastic) if elastic else []
    for window in idle.watch(kinds, runs) if kinds else ():
        for kind, values in window.items():
            for figure, value in values.items():
                record[kind][figure].append(value)


def measure_floor(runs: int, record: Book) -> None:
    """Measure the floor ``runs`` times."""
    for _ in range(runs):
        for figure, value in floor.measure().items():
            record[figure]["median"].append(value)


def floors(record: Book) -> dict[str, float]:
    """Return the floor of those figures that have one: what no launcher can do without, in seconds."""
    if not record:
        return {}
    imported, forked, recovered = (median(record[figure]["median"]) for figure in floor.FIGURES)
    return {LAUNCH: imported + forked, KILLED_ONE: recovered, KILLED_REST: recovered}


def say(lines: Iterable[object]) -> None:
    """Print at once."""
    for line in lines:
        print(line, flush=True)


def section(names: Sequence[str], runs: int, scenes: Book, idlers: Book, floor_record: Book) -> list[str]:
    """All tables, with the machine that they were measured on."""
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    ratio_rows = ratios(scenes, floors(floor_record))
    shares = [f"{WARM.name}, as a share of", "torchrun's better", "torchrun", "torchrun, tuned", "the floor"]
    never = f"*never* is not within {PATIENCE:.0f} s ({SHORT:.0f} s where no node is waited for), or a job that ended"
    unreached = "- was not reached in the time given"
    return paragraphs(
        [f"Medians of {runs} runs, with the least and the greatest; {never}; {unreached}."],
        [f"{machine}, torch {version('torch')}, gloo on loopback."],
        figures("until all ranks are in an all-reduce", TIMES, names, scenes, seconds, runs),
        table(shares, ratio_rows) if ratio_rows else [],
        figures("the floor", floor.FIGURES, ["median"], floor_record),
        figures("PSS, one node", MEMORY, names, scenes, megabytes),
        figures("CPU of an idle node, two sleeping workers", list(idlers), idle.CPUS, idlers, per_hour),
        figures("RSS of the same", list(idlers), idle.RSSES, idlers, megabytes),
    )


def main() -> None:
    """Measure everything with all launchers in turn, and write the page."""
    parser = argparse.ArgumentParser(description="Measure elastic beside torchrun.")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"how often everything is measured [{RUNS}]")
    help = f"only scenes whose titles contain this, {IDLE!r} or {FLOOR!r}; the page stays as it is"
    parser.add_argument("--only", default="", metavar="WORD", help=help)
    help = "only launchers whose names contain this; the page stays as it is"
    parser.add_argument("--launchers", default="", metavar="WORD", help=help)
    help = f"no run is begun that would end later than this; tables tell how many there were [{MINUTES:g}]"
    parser.add_argument("--minutes", type=float, default=MINUTES, help=help)
    args = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # jobs are ended on the way out
    begin = time.monotonic()
    compared = [launcher for launcher in launchers() if args.launchers in launcher.name]
    names = [launcher.name for launcher in compared]
    scenes, idlers, floor_record = book(), book(), book()
    if args.only in FLOOR:
        measure_floor(args.runs, floor_record)
    if args.only in IDLE:
        measure_idle(compared, args.runs, idlers)
    measure_scenes(compared, args.runs, args.only, begin + args.minutes * 60, scenes)
    written = section(names, args.runs, scenes, idlers, floor_record)
    say(["", *written, "", *targets(scenes, scenes, idlers)])
    say([f"\n{(time.monotonic() - begin) / 60:.1f} minutes"])
    if not (args.only or args.launchers):
        PAGE.write_text(replaced(PAGE.read_text(), BEGIN, END, written))


if __name__ == "__main__":
    main()
