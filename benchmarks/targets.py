"""The targets of the warm start, compared with a measurement: one line for each target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from benchmarks.idle import CPU, RSS_AGENT, RSS_WARDEN, Kind
from benchmarks.jobs import FRESH, TORCHRUN, TUNED, WARM
from benchmarks.scenes import KILLED_ONE, KILLED_REST, LAUNCH, LOST, LOST_DEAF, PAUSE, TIMES, WEIGHT
from benchmarks.tables import NOTHING, Samples, median, megabytes, per_hour, ratio, seconds

TORCHRUN_IDLE = Kind(TORCHRUN, "c10d").name
HEARTBEATS = 6.0
"""Seconds within which a node is missed whose peers only block: ``lost_after``."""
Measured = Mapping[str, Mapping[str, Samples]]


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that is to be at most ``limit``."""

    what: str
    value: float
    limit: float
    show: Callable[[float], str] = seconds

    @property
    def met(self) -> bool:
        """True if the target is met."""
        return self.value <= self.limit

    def __str__(self) -> str:
        verdict = "met    " if self.met else "NOT MET"
        return f"{verdict} {self.what}: {self.show(self.value)}, at most {self.show(self.limit)}"


def targets(times: Measured, memory: Measured, idle: Measured) -> Iterator[Target]:
    """All targets of which enough was measured."""

    def of(measured: Measured, row: str, column: str) -> float:
        return median(measured.get(row, {}).get(column, ()))

    def warm(row: str) -> float:
        return of(times, row, WARM.name)

    for row, shares in (
        (KILLED_ONE, {"best": 15}),
        (KILLED_REST, {TORCHRUN.name: 100, TUNED.name: 25}),
        (LAUNCH, {"best": 2}),
    ):
        for name, share in shares.items():
            whole = best(times, row) if name == "best" else of(times, row, name)
            compared = {TORCHRUN.name, TUNED.name} if name == "best" else {name}
            if WARM.name in times.get(row, {}) and compared & times[row].keys():
                yield Target(f"{row}, 1/{share} of torchrun's ({name})", warm(row), whole / share)
    for row, limit in ((PAUSE, 0.5), (LOST, 1.5), (LOST_DEAF, HEARTBEATS + 1.5)):
        if WARM.name in times.get(row, {}):
            yield Target(row, warm(row), limit)
    for kind, used in idle.items():
        if "c10d" not in kind:
            weight = median(used[RSS_AGENT]) + median(used[RSS_WARDEN])
            yield Target(f"{kind}: RSS of agent and warden", weight, 45e6, megabytes)
            if (whole := of(idle, TORCHRUN_IDLE, CPU)) < math.inf:
                yield Target(f"{kind}: CPU of both, a third of torchrun's", median(used[CPU]), whole / 3, per_hour)
    if {FRESH.name, WARM.name} <= memory.get(WEIGHT, {}).keys():
        fresh = of(memory, WEIGHT, FRESH.name)
        yield Target(f"PSS of {WEIGHT}, less than fresh", of(memory, WEIGHT, WARM.name), fresh, megabytes)


def best(times: Measured, row: str) -> float:
    """Return the better median of torchrun's two, in seconds."""
    return min(median(times.get(row, {}).get(name, ())) for name in (TORCHRUN.name, TUNED.name))


def ratios(times: Measured, floors: Mapping[str, float]) -> list[list[str]]:
    """Return a row for each figure: elastic's warm start beside torchrun's better median, its default, tuned, and the
    floor.

    ``floors`` are in seconds, by figure, for those that have one.
    """
    rows = []
    for row in TIMES:
        if (warm := median(times.get(row, {}).get(WARM.name, ()))) == math.inf:
            continue
        others = (best(times, row), *(median(times[row].get(name, ())) for name in (TORCHRUN.name, TUNED.name)))
        floor = ratio(warm, floors[row]) if row in floors else NOTHING
        rows.append([row, *(ratio(warm, other) for other in others), floor])
    return rows
