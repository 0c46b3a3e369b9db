"""``python -m simulator.measure``: the outcome of many plans of a profile that breaks an assumption."""

from __future__ import annotations

import argparse
import gc
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulator import campaign
from simulator.assumptions import ASSUMPTIONS
from simulator.profiles import draw

if TYPE_CHECKING:
    from simulator.plan import Plan
    from simulator.play import Outcome


@dataclass
class Consequence:
    """The outcome of plans whose profile breaks an assumption."""

    plans: int = 0
    violations: list[str] = field(default_factory=list)
    broken: Counter[str] = field(default_factory=Counter)
    """Number of plans in which a suspended invariant did not hold."""
    overlapping: Counter[str] = field(default_factory=Counter)
    """Number of plans in which rounds, or runs, trained at once."""
    longest: dict[str, float] = field(default_factory=dict)
    """The most seconds of each kind of overlap."""
    coverage: Counter[str] = field(default_factory=Counter)

    def add(self, other: Consequence) -> None:
        """Add another outcome."""
        self.plans += other.plans
        self.violations += other.violations
        self.broken += other.broken
        self.overlapping += other.overlapping
        self.coverage += other.coverage
        for kind, seconds in other.longest.items():
            self.longest[kind] = max(seconds, self.longest.get(kind, 0.0))

    def take(self, what: str, plan: Plan, outcome: Outcome) -> None:
        """Add the outcome of a plan."""
        self.plans += 1
        if outcome.violation is not None:
            self.violations.append(f"{what}: {outcome.violation}")
        self.broken.update(outcome.broken.keys())
        self.coverage.update(outcome.coverage.keys())
        for kind, seconds in outcome.overlaps.items():
            self.overlapping[kind] += 1
            self.longest[kind] = max(seconds, self.longest.get(kind, 0.0))


def measure(profile: str, numbers: range) -> Consequence:
    """Play these plans of a profile in this process; every second one in the safety mode."""
    from simulator.play import play

    found = Consequence()
    gc.disable()
    try:
        for number in numbers:
            plan = draw(number // 2, profile, number % 2 == 0)
            found.take(f"{profile} {number // 2}{' --safety' * (number % 2)}", plan, play(plan))
    finally:
        gc.enable()
        gc.collect()
    return found


def measure_on_all_cores(profile: str, plans: int, processes: ProcessPoolExecutor, first: int = 0) -> Consequence:
    """Play the plans on all cores."""
    total = Consequence()
    chunks = [range(at, min(at + campaign.CHUNK, first + plans)) for at in range(first, first + plans, campaign.CHUNK)]
    for found in processes.map(measure, [profile] * len(chunks), chunks):
        total.add(found)
    return total


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m simulator.measure", description=__doc__)
    parser.add_argument("profiles", nargs="*", help="profiles to measure [all that break an assumption]")
    parser.add_argument("--plans", type=int, default=2000, help="number of plans of each profile [2000]")
    parser.add_argument("--first", type=int, default=0, help="number of the first plan [0]")
    parser.add_argument("--jobs", type=int, help="number of processes [one per CPU]")
    options = parser.parse_args()
    with campaign.pool(options.jobs) as processes:
        for profile in options.profiles or ASSUMPTIONS:
            _print(profile, measure_on_all_cores(profile, options.plans, processes, options.first))


def _print(profile: str, found: Consequence) -> None:
    print(f"{profile}: {ASSUMPTIONS[profile].says}")
    print(f"  {found.plans} plans, {len(found.violations)} violated")
    for what, count in sorted(found.broken.items()):
        print(f"  {what} does not hold in {count}")
    for kind, count in sorted(found.overlapping.items()):
        print(f"  {kind} in {count}, for {found.longest[kind]:.1f} s at most")
    for violation in found.violations[:5]:
        print(f"  {violation}")
    ends = {
        what: count for what, count in found.coverage.items() if what.startswith(("exit", "CLOSED", "fault", "S2 an"))
    }
    print("  in how many plans: " + "; ".join(f"{what} {ends[what]}" for what in sorted(ends)))


if __name__ == "__main__":
    main()
