"""The cost of keeping a training's state, in memory and on the disk, beside torch's own ways and a plain copy.

``make bench`` runs it after the others, and rewrites its tables in ``benchmarks/RESULTS.md``, which says how each
figure is taken. ``make bench-snapshots ARGS=--only=disk`` does so with one of the two parts alone; with ``--kinds`` or
``--size`` the page stays as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from rig import WARM, Agent, Report, Rig

from benchmarks.checkpointing import COPIES, DISK_FIRST, DISK_LATER, LATER, LOADS, SAVES
from benchmarks.committing import COMMITTED, RESTORED
from benchmarks.states import ADAMW, FEW, KINDS, MANY
from benchmarks.tables import figures, median, megabytes, paragraphs, replaced, seconds
from benchmarks.targets import Target

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "benchmarks" / "RESULTS.md"
RUNS = 5
MINUTES = 20.0
PATIENCE = 300.0
"""Seconds until a worker that says nothing is given up."""
SIZE = 1024
MEMORY, DISK = "memory", "disk"
PARTS: Mapping[str, Sequence[str]] = {MEMORY: (MANY, FEW, ADAMW), DISK: (MANY,)}
"""The measurements, by kind of state."""
COPY = "a plain copy into memory that is there"
FIRST, SECOND, LATER_ONES = "`commit()`: the first", "`commit()`: the second", "`commit()`: later ones"
RESTORE, AGAIN = "`restore()` after a crash", "`commit()`: the first two after a crash"
WAITS: Mapping[str, Sequence[str]] = {
    MEMORY: (COPY, FIRST, SECOND, LATER_ONES, RESTORE, AGAIN),
    DISK: (COPY, *SAVES),
}
BESIDE = (*LATER, *LOADS)
COMMITS = "`commit()`, both snapshots"
WEIGHTS = (COMMITS, DISK_FIRST, DISK_LATER, *SAVES[2:], *LOADS)
CALM = {"OMP_NUM_THREADS": "1"}
"""As launchers set it where a node has several workers. Two threads on busy cores wait for each other instead."""

Samples = dict[str, dict[str, list[float | None]]]
"""By figure and kind of state, one for each run."""


def samples() -> Samples:
    """None yet."""
    return defaultdict(lambda: defaultdict(list))


@dataclass
class Record:
    """All that was measured: seconds, how they compare with the plain copies of the same processes, and bytes."""

    times: Samples = field(default_factory=samples)
    shares: Samples = field(default_factory=samples)
    memory: Samples = field(default_factory=samples)

    def add(self, kind: str, copies: Sequence[float], took: Mapping[str, float]) -> None:
        """Add what one process has measured."""
        copy = statistics.median(copies)
        for figure, value in {COPY: copy, **took}.items():
            self.times[figure][kind].append(value)
            self.shares[figure][kind].append(value / copy)
            say(f"{KINDS[kind]}: {figure}: {seconds(value)}, {value / copy:.2f} copies")


def say(*lines: object) -> None:
    """Print at once."""
    print(*lines, sep="\n", flush=True)


def reported(rig: Rig, agent: Agent, event: str) -> Report:
    """Return what the worker says.

    Raises:
        RuntimeError: It does not.
    """
    if not rig.wait_until(lambda: agent.ended or agent.reports(event), PATIENCE) or not agent.reports(event):
        raise RuntimeError(f"no worker has {event} its state:\n{agent.output}")
    return agent.reports(event)[0]


def in_memory(kind: str, size: int, record: Record) -> None:
    """Measure a job of one worker that commits, is killed, and restores.

    Raises:
        RuntimeError: It did not come back.
    """
    with tempfile.TemporaryDirectory(prefix="elastic-bench-") as folder:
        rig = Rig(Path(folder))
        try:
            command = ["--standalone", "--max_restarts=1", "--module", "benchmarks.committing", kind, size]
            path = [str(ROOT), *map(os.path.abspath, sys.path)]  # the job is in another folder
            agent = rig.run(*command, env={**WARM, **CALM, "PYTHONPATH": os.pathsep.join(path)})
            before = reported(rig, agent, COMMITTED)
            agent.kill_worker(0)
            after = reported(rig, agent, RESTORED)
        finally:
            rig.destroy()
    first, second, *later = before["commits"]
    record.add(kind, before["copies"], {FIRST: first, SECOND: second, LATER_ONES: statistics.median(later)})
    record.add(kind, after["copies"], {RESTORE: after["restore"], AGAIN: statistics.median(after["commits"][:2])})
    record.memory[COMMITS][kind].append(before["memory"])


def on_disk(kind: str, size: int, record: Record) -> None:
    """Measure how a process saves and loads."""
    with tempfile.TemporaryDirectory(prefix="elastic-bench-", dir="/var/tmp") as folder:  # /tmp may be memory
        command = [sys.executable, "-m", "benchmarks.checkpointing", kind, str(size), folder]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **CALM})
    found = json.loads(done.stdout)
    record.add(kind, found[COPIES], {name: statistics.median(values) for name, values in found["seconds"].items()})
    for figure, value in found["memory"].items():
        record.memory[figure][kind].append(value)


MEASURE: Mapping[str, Callable[[str, int, Record], None]] = {MEMORY: in_memory, DISK: on_disk}


def targets(shares: Mapping[str, Mapping[str, Sequence[float | None]]]) -> Iterator[Target]:
    """Yield the targets, in plain copies, whose figures were measured."""
    for figure, limit in ((LATER_ONES, 1.3), (DISK_LATER, 1.3), (RESTORE, 2.0)):
        for kind, found in shares.get(figure, {}).items():
            yield Target(f"{figure}, {KINDS[kind]}, in plain copies", median(found), limit, "{:.2f}".format)


def marks(part: str) -> tuple[str, str]:
    """Between which lines of the page a part's tables are."""
    return f"<!-- snapshots, {part}: written by benchmarks/snapshots.py -->", f"<!-- end of snapshots, {part} -->"


def section(part: str, record: Record, size: int, runs: int, load: Sequence[float]) -> list[str]:
    """Return the tables of a part, with the machine that they were measured on."""
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    kinds = [kind for kind in KINDS if record.times[COPY][kind]]
    columns = [KINDS[kind] for kind in kinds]

    def shown(title: str, rows: Sequence[str], found: Samples, show: Callable[[float], str]) -> list[str]:
        named = {row: {KINDS[kind]: values for kind, values in found[row].items()} for row in rows if row in found}
        return figures(title, rows, columns, named, show, runs)

    reached = [f"- {target}" for target in targets(record.shares)]
    return paragraphs(
        [f"Medians of {runs} runs, with the least and the greatest, of a state of {size} MiB; - was not measured."],
        [
            f"{machine}, torch {version('torch')}, one thread a process; load (all processes of the machine, these "
            f"among them) {min(load):.1f} to {max(load):.1f}."
        ],
        shown("training waits", WAITS[part], record.times, seconds),
        shown("in plain copies of the same process", WAITS[part][1:], record.shares, "{:.2f}".format),
        shown("what training does not wait for, and loading", BESIDE, record.times, seconds),
        shown("memory beyond the state's", WEIGHTS, record.memory, megabytes),
        reached,
    )


def main() -> None:
    """Measure everything in turn, and write the page."""
    parser = argparse.ArgumentParser(description="Measure snapshots and checkpoints beside a plain copy.")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"how often everything is measured [{RUNS}]")
    help = f"MiB of a state; the page stays as it is unless they are [{SIZE}]"
    parser.add_argument("--size", type=int, default=SIZE, help=help)
    help = f"only these of {','.join(KINDS)}; the page stays as it is"
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="NAME,NAME", help=help)
    parser.add_argument("--only", choices=PARTS, help="only this part")
    help = f"no run is begun that would end later than this [{MINUTES:g}]"
    parser.add_argument("--minutes", type=float, default=MINUTES, help=help)
    parser.add_argument("--page", type=Path, help="write the tables into this page, whatever was measured")
    args = parser.parse_args()
    chosen = args.kinds.split(",")
    if unknown := set(chosen) - set(KINDS):
        parser.error(f"--kinds: there is no {', '.join(sorted(unknown))}")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # processes are ended on the way out
    begin = time.monotonic()
    for part in PARTS if args.only is None else [args.only]:
        kinds = [kind for kind in PARTS[part] if kind in chosen]
        written = measure(part, kinds, args.size, args.runs, begin + args.minutes * 60)
        say("", *written, f"\n{(time.monotonic() - begin) / 60:.1f} minutes")
        page = args.page or (PAGE if chosen == list(KINDS) and args.size == SIZE else None)
        if page is not None:
            page.write_text(replaced(page.read_text(), *marks(part), written))


def measure(part: str, kinds: Sequence[str], size: int, runs: int, deadline: float) -> list[str]:
    """One part, ``runs`` times over, or as often as is done before the deadline; its tables."""
    load, record, took = [os.getloadavg()[0]], Record(), 0.0
    for run in range(1, runs + 1):
        begin = time.monotonic()
        if begin + took > deadline:
            say(f"{part}, run {run}: no time is left")
            break
        for kind in kinds:
            MEASURE[part](kind, size << 20, record)
        took = time.monotonic() - begin
        load.append(os.getloadavg()[0])
        say(f"{part}, run {run} of {runs} is over, at load {load[-1]:.1f}")
    return section(part, record, size, runs, load)


if __name__ == "__main__":
    main()
