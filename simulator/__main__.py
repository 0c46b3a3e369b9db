"""``python -m simulator``: run a campaign of plans, or show the timeline of one plan."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from simulator import campaign, decisions
from simulator.plan import Plan
from simulator.profiles import PROFILES, draw

DESCRIPTION = """\
Simulate the rendezvous protocol under faults, in virtual time.

Elastic's own agents run over a simulated store, network and clocks. Agents crash, hosts lose power, networks
partition, the store loses data. A plan is one job with its faults; a seed and a profile (a mix of faults) give
one plan, and a plan gives one course of events. All rules of docs/internals/protocol.md are checked at each event.
Without an option that names a plan, a campaign of many plans runs on all CPUs. The exit code is 1 if a rule is
violated.
"""
EXAMPLES = """\
examples:
  python -m simulator --plans 2000                    run 2,000 plans; print coverage and violations
  python -m simulator --number 1234                   show the timeline of plan 1234 of a campaign
  python -m simulator --seed 7 --profile network      show the plan of a seed and a profile
  python -m simulator --number 1234 --shrink --keep tests/simulator/found/NAME.json
                                                      reduce a violated plan, and keep it as a regression test
  python -m simulator --replay tests/simulator/found/NAME.json

docs/internals/simulator.md lists the faults, the checks and the profiles.
"""


REPLAY_HELP = "a plan in a file, as --keep writes it, or decisions that an agent has written"


def main() -> int:
    """Run the command line; return 1 if a plan is violated."""
    parser = argparse.ArgumentParser(
        prog="python -m simulator",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    many = parser.add_argument_group("a campaign")
    many.add_argument("--plans", type=int, default=2000, metavar="N", help="number of plans [2000]")
    many.add_argument("--first", type=int, default=0, metavar="N", help="number of the first plan [0]")
    many.add_argument("--jobs", type=int, metavar="N", help="number of processes [one per CPU]")
    one = parser.add_argument_group("one plan, shown with its timeline")
    one.add_argument("--number", type=int, metavar="N", help="the plan of this number in a campaign")
    one.add_argument("--seed", type=int, metavar="N", help="the plan of this seed and --profile")
    one.add_argument(
        "--profile", choices=sorted(PROFILES), default="everything", metavar="NAME", help="with --seed [everything]"
    )
    one.add_argument("--safety", action="store_true", help="with --seed: check safety only, not that the job recovers")
    one.add_argument("--replay", type=Path, metavar="FILE", help=REPLAY_HELP)
    one.add_argument("--shrink", action="store_true", help="reduce the plan to the faults that its violation needs")
    one.add_argument("--keep", type=Path, metavar="FILE", help="write the plan to a file")
    options = parser.parse_args()
    if options.replay is not None and decisions.is_log(text := options.replay.read_text(encoding="utf-8")):
        return decisions.show(text)
    plan = _chosen_plan(options)
    if plan is None:
        return _campaign(options)
    if options.shrink:
        plan = _shrunken(plan)
    if options.keep:
        options.keep.write_text(plan.dump())
    return show(plan)


def _chosen_plan(options: argparse.Namespace) -> Plan | None:
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
        show(_shrunken(draw(*campaign.parameters_of(number))))
    return 1 if result.violations else 0


def _shrunken(plan: Plan) -> Plan:
    from simulator.shrinker import shrink  # imports core, as play does

    return shrink(plan)


def show(plan: Plan) -> int:
    """Print a plan and its timeline; return 1 if it is violated."""
    from simulator.play import play

    outcome = play(plan, traced=True)
    print(plan.dump())
    print("\n".join(outcome.trace))
    print(f"\n{outcome.violation or 'no violation'}; the timeline's digest is {outcome.digest}")
    return 0 if outcome.violation is None else 1


if __name__ == "__main__":
    sys.exit(main())
