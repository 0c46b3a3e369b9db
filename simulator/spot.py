"""``python -m simulator.spot``: the useful work of a job on traces of spot instances, by the time of resizes."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from simulator.spot_job import RESTART_SECONDS, Change, Job, at_once, load, node_seconds, wait_a_minute
from simulator.spot_leader import LedJob

TRACES = ("bamboo-p3", "bamboo-g4dn")
INTERVALS = (300.0, 900.0, 1800.0)
"""Seconds of training between two checkpoints."""
STRATEGIES: dict[str, Callable[[float, float], Job]] = {
    "at once": lambda interval, start: Job(at_once, interval, start=start),
    "after 60 s": lambda interval, start: Job(wait_a_minute, interval, start=start),
    "L13, checkpoints unknown": lambda interval, start: LedJob(interval=interval, start=start, known=False),
    "L13, checkpoints known": lambda interval, start: LedJob(interval=interval, start=start),
}
"""Factories of jobs, by the interval of checkpoints and the seconds until workers train."""


def played(trace: list[Change], interval: float, start: float = RESTART_SECONDS) -> dict[str, Job]:
    """Return the job after a trace, for each strategy."""
    return {name: job(interval, start).play(trace) for name, job in STRATEGIES.items()}


def main() -> None:
    """Print the table of ``docs/internals/simulator.md``."""
    parser = argparse.ArgumentParser(prog="python -m simulator.spot", description=__doc__)
    parser.add_argument("traces", nargs="*", default=TRACES, help=f"traces to play [{' '.join(TRACES)}]")
    parser.add_argument(
        "--start", type=float, default=RESTART_SECONDS, help="seconds until workers train [%(default)g]"
    )
    given = parser.parse_args()
    print(f"| trace | a checkpoint each | {' | '.join(STRATEGIES)} |")
    print("|---|---|" + "---|" * len(STRATEGIES))
    for name in given.traces:
        trace = load(name)
        total = node_seconds(trace)
        for interval in INTERVALS:
            jobs = played(trace, interval, given.start).values()
            cells = " | ".join(f"{job.useful / total:.1%} ({job.resizes})" for job in jobs)
            print(f"| {name} | {interval / 60:g} min | {cells} |")


if __name__ == "__main__":
    main()
