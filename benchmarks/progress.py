"""The CPU time that the agent's thread takes to read the progress of a worker from its output.

A process writes a thousand lines a second into a pipe, one write for each. A pump thread of this process reads them, as
an agent's does, once with a progress reader and once without, in turn. The difference is the reader's.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.launchers import PAGE
from benchmarks.tables import paragraphs, replaced, table
from elastic_core.agent.output import Pump, PumpThread
from elastic_core.monitors import RunningRound, Shape
from elastic_core.progress_table import ProgressTable
from elastic_progress.patterns import compile_expressions
from elastic_progress.reader import ProgressReader

LINES_PER_SECOND = 1000
SECONDS = 10.0
"""Of one run."""
RUNS = 3
BEGIN, END = "<!-- progress: written by benchmarks/progress.py -->", "<!-- end of progress -->"
STEP = "step: {n:2}  loss:  3.24405  grad_norm:  0.8319  memory:  9.46GiB(64.99%)  tps: 7,282"
KINDS: dict[str, tuple[str, str | None]] = {
    "other lines": ("2026-05-18 16:04:46,338 - root - INFO - something of no interest happened {n} times here", None),
    "one line in 100 is a step of torchtitan": ("", None),
    "each line is a step of torchtitan": (f"[titan] 2026-05-18 16:04:46,338 - root - INFO - {STEP}", None),
    "each line is matched by `--progress_pattern`": (f"[rank0] {STEP}", r"step: +(?P<step>\d+) +loss: +(?P<loss>\S+)"),
    "each line is matched by a `--progress_pattern` without a literal text": (
        f"[rank0] {STEP}",
        r"(?P<step>\d+) +\D+(?P<loss>\S+)",
    ),
}
"""The output of a worker, and the expression that reads it, by the row of the table."""
_WRITER = """
import os, sys, time
line, other, rate, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
began = time.monotonic()
for n in range(int(rate * seconds)):
    text = line or (other if n % 100 else "step: %d  loss:  0.5" % (n // 100))
    text = text.replace("{n:2}", str(n)).replace("{n}", str(n))
    os.write(1, text.encode() + b"\\n")
    time.sleep(max(0.0, began + n / rate - time.monotonic()))
"""


def cpu_share(line: str, expression: str | None, *, reads: bool) -> float:
    """Return the CPU seconds a second that this process needs for one stream."""
    round = RunningRound(0, "", [], Path(), ProgressTable(), lambda event: None, lambda event: None, lambda: ())
    if reads:
        ProgressReader(compile_expressions(expression)).begin(round)
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pump = Pump(reading, round.readers.open(0), None, Shape())
    thread = PumpThread("reads")
    other = KINDS["other lines"][0]
    command = [sys.executable, "-c", _WRITER, line, other, str(LINES_PER_SECOND), str(SECONDS)]
    with subprocess.Popen(command, stdout=writing):
        os.close(writing)
        began, spent = time.monotonic(), time.process_time()
        thread.add([pump])
        pump.ended.wait(10 * SECONDS)
        spent, took = time.process_time() - spent, time.monotonic() - began
    thread.close(1.0)
    if reads and line != other:
        assert round.newest_progress(), "nothing was read"
    return spent / took


def main() -> None:
    """Measure all kinds, and write the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=RUNS)
    runs = arguments.parse_args().runs
    samples: dict[str, dict[bool, list[float]]] = {kind: {True: [], False: []} for kind in KINDS}
    for _ in range(runs):
        for kind, (line, expression) in KINDS.items():
            for reads in (False, True):
                samples[kind][reads].append(share := cpu_share(line, expression, reads=reads))
                print(f"{kind}, {'read' if reads else 'not read'}: {100 * share:.2f} %", flush=True)
    rows = []
    for kind, both in samples.items():
        off, on = (sorted(both[reads])[runs // 2] for reads in (False, True))
        rows.append([kind, *(f"{100 * share:.2f} %" for share in (off, on, on - off))])
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    head = f"{machine}; shares of one core, medians of {runs} runs of {SECONDS:g} s each."
    written = paragraphs([head], table(["a worker writes 1,000 lines/s", "passed on", "and read", "difference"], rows))
    print("\n".join(written))
    PAGE.write_text(replaced(PAGE.read_text(), BEGIN, END, written))


if __name__ == "__main__":
    main()
