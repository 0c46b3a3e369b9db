"""``python -m simulator``: run a campaign, or look at one plan."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from simulator import campaign
from simulator.plan import Plan
from simulator.profiles import PROFILES, draw


def main() -> int:
    """Run the command line; return 1 if a plan was violated."""
    parser = argparse.ArgumentParser(prog="simulator", description=__doc__)
    parser.add_argument("--plans", type=int, default=2000, help="how many to play [2000]")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one [0]")
    parser.add_argument("--jobs", type=int, help="processes [one per CPU]")
    parser.add_argument("--number", type=int, help="look at this one of the campaign")
    parser.add_argument("--seed", type=int, help="look at the plan of this seed and --profile")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="everything")
    parser.add_argument("--safety", action="store_true", help="with --seed: end with the faults, ask for no progress")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="look at a plan that was kept")
    parser.add_argument("--shrink", action="store_true", help="make the plan small that one looks at")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write the plan that one looks at")
    options = parser.parse_args()
    plan = _chosen(options)
    if plan is None:
        return _campaign(options)
    if options.shrink:
        plan = _made_small(plan)
    if options.keep:
        options.keep.write_text(plan.dump())
    return show(plan)


def _chosen(options: argparse.Namespace) -> Plan | None:
    if options.replay is not None:
        return Plan.load(options.replay.read_text())
    if options.number is not None:
        return draw(*campaign.parameters_of(options.number))
    if options.seed is not None:
        return draw(options.seed, options.profile, not options.safety)
    return None


def _campaign(options: argparse.Namespace) -> int:
    began = time.monotonic()
    with campaign.pool(options.jobs) as processes:
        result = campaign.run(options.first, options.plans, processes)
    took = time.monotonic() - began
    width = max(map(len, result.coverage), default=0)
    for what, count in sorted(result.coverage.items()):
        print(f"{what:<{width}}  {count}")
    print(
        f"{result.plans} plans, {result.events} events, {result.seconds / 3600:.1f} h of virtual time in {took:.1f} s: "
        f"{len(result.violations)} violation(s)"
    )
    for number, violation in result.violations[:20]:
        print(f"plan {number}: {violation}")
    if result.violations:
        number = result.violations[0][0]
        print(f"\nThe first of them, made small (again with: --number {number} --shrink):\n")
        show(_made_small(draw(*campaign.parameters_of(number))))
    return 1 if result.violations else 0


def _made_small(plan: Plan) -> Plan:
    from simulator.shrinker import shrink  # imports core, as below

    return shrink(plan)


def show(plan: Plan) -> int:
    """Print a plan and its timeline; 1 if it is violated."""
    from simulator.play import play

    outcome = play(plan, traced=True)
    print(plan.dump())
    print("\n".join(outcome.trace))
    print(f"\n{outcome.violation or 'no violation'}; the timeline's digest is {outcome.digest}")
    return 0 if outcome.violation is None else 1


if __name__ == "__main__":
    sys.exit(main())
