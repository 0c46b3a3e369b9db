"""Campaigns: thousands of plans on all cores, with their coverage and violations.

Only the processes that play plans import core, after :mod:`simulator.mutable_dataclasses` is in effect.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulator.mutable_dataclasses import use_mutable_dataclasses
from simulator.profiles import ORDER, draw

if TYPE_CHECKING:
    from simulator.checker import Violation

CHUNK = 50
"""Plans that a process takes at a time."""


@dataclass
class Result:
    """The outcome of a campaign."""

    plans: int = 0
    events: int = 0
    seconds: float = 0.0
    """Of virtual time."""
    coverage: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, Violation]] = field(default_factory=list)
    """Each with the number of its plan."""

    def add(self, other: Result) -> None:
        """Add another result."""
        self.plans += other.plans
        self.events += other.events
        self.seconds += other.seconds
        self.coverage.update(other.coverage)
        self.violations += other.violations


def parameters_of(number: int) -> tuple[int, str, bool]:
    """Return the seed, profile and mode of a plan of a campaign: profiles and modes take turns."""
    return number, ORDER[number // 2 % len(ORDER)], number % 2 == 1


def pool(jobs: int | None = None) -> ProcessPoolExecutor:
    """Return a pool of processes: one for each CPU unless ``jobs`` is given."""
    # Forking a process that has threads is asking for trouble, and a test runner may have some.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs or os.cpu_count(), mp_context=context, initializer=use_mutable_dataclasses)


def run(first: int, count: int, processes: ProcessPoolExecutor) -> Result:
    """Play ``count`` plans from number ``first`` on."""
    total = Result()
    chunks = [range(at, min(at + CHUNK, first + count)) for at in range(first, first + count, CHUNK)]
    for result in processes.map(play_all, chunks):
        total.add(result)
    total.violations.sort(key=lambda found: found[0])
    return total


def play_all(numbers: range) -> Result:
    """Play these plans in this process."""
    from simulator.play import play

    result = Result()
    gc.disable()  # a plan's garbage is cyclic; one collection for all is cheaper than many on the way
    try:
        for number in numbers:
            outcome = play(draw(*parameters_of(number)))
            result.plans += 1
            result.events += outcome.events
            result.seconds += outcome.ended_at
            result.coverage.update(outcome.coverage)
            if outcome.violation is not None:
                result.violations.append((number, outcome.violation))
    finally:
        gc.enable()
        gc.collect()
    return result
