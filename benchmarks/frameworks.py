"""The wait of a framework's user after a kill: Hugging Face's Trainer, from SIGKILL until it trains again.

``python -m benchmarks.frameworks`` needs what ``requirements/frameworks.txt`` names. Each run is a job of its own, in
which one worker is killed once the fork server has imported what workers import; with flags of ``elastic run`` after
``--``, such as ``--preload=torch,torch._dynamo``, it imports no more than these say, and is not waited for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "tests" / "frameworks" / "scripts" / "hf_trainer.py"
WATCH = """
import json, os, time
def _report(event):
    rank, life = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    line = json.dumps({"event": event, "rank": rank, "life": life, "pid": os.getpid(), "at": time.monotonic()})
    os.write(1, ("\\n" + line + "\\n").encode())
def began(step):
    _report("began")
def step_ended(step):
    if step == 1:
        _report("first step")
    elif step % 20 == 0:
        _report("step")
    time.sleep(0.05)
def finished():
    pass
"""
READY = re.compile(r"the fork server has imported .* more module")
QUIET = 15.0
"""Seconds without news of the fork server after which it has imported what workers import."""


def fork_server_pss() -> float:
    """MB of the only fork server on this host, pages that it shares with others counted in part."""
    sizes = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "comm").read_text().strip() == "elastic-warm":
                rollup = (folder / "smaps_rollup").read_text()
                sizes.append(int(re.findall(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[0]) / 1024)
    return max(sizes, default=0.0)


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """Yield what a job prints, line by line."""
    assert process.stdout is not None
    for line in process.stdout:
        yield line.rstrip("\n")


def measure(folder: Path, flags: list[str]) -> dict[str, float]:
    """One job, and one kill in it: seconds until all ranks are in the training loop, and until their first step."""
    (folder / "watch.py").write_text(WATCH)
    command = [sys.executable, "-m", "elastic_core", "run", "--standalone", "--nproc_per_node=2", "--max_restarts=1"]
    arguments = ["--use_cpu", "--max_steps=100000", "--save_strategy=no", "--report_to=none", "--disable_tqdm=true"]
    command += ["-v", *flags, str(SCRIPT), f"--output_dir={folder}/output", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    try:
        reports: list[dict[str, float | str]] = []
        learns, killed, quiet_at, memory = not flags, 0.0, 0.0, 0.0
        for line in lines(process):
            if line.startswith("{"):
                reports.append(json.loads(line))
            elif READY.search(line):
                print(f"  {line}", file=sys.stderr)
                learns, quiet_at = False, time.monotonic() + QUIET
            steps = {r["rank"]: r for r in reports if r["event"] == "first step" and r["life"] == 0}
            if len(steps) == 2 and not killed:
                if learns or time.monotonic() < quiet_at:
                    continue
                memory, killed = fork_server_pss(), time.monotonic()
                os.kill(int(steps[1]["pid"]), signal.SIGKILL)
            again = {event: [r for r in reports if r["life"] == 1 and r["event"] == event] for event in EVENTS}
            if all(len(found) == 2 for found in again.values()):
                times = {event: max(float(r["at"]) for r in again[event]) - killed for event in EVENTS}
                return {**times, "MB": memory}
        raise SystemExit("the job has ended before it was back")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.communicate()


EVENTS = ("began", "first step")


def main() -> None:
    """Measure several times, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("flags", nargs="*", help="of `elastic run`, after --: such as --preload=torch")
    options = parser.parse_args()
    found = []
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(Path(folder), options.flags))
        print({name: round(value, 3) for name, value in found[-1].items()}, "load", os.getloadavg()[0])
    print({name: round(statistics.median(each[name] for each in found), 3) for name in found[0]})


if __name__ == "__main__":
    main()
