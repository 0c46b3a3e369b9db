"""The reduction of a failing plan to few faults and hosts that lead to the same violation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.plan import Fault, Plan
from simulator.play import play

MOST_PLAYS = 600
"""The most plans that are tried."""
DEFAULTS: dict[str, object] = {
    "clock_rates": (),
    "policy_seconds": 0.0,
    "finish_spread": 0.0,
    "latency": 0.002,
    "timeout": 4.0,
    "peer_loss_noticed": True,
    "work_seconds": 10_000.0,
    "last_call_timeout": 1.0,
    "has_uid": True,
    "max_restarts": 3,
    "replace_lost": True,
    "min_nodes": 1,
    "seed": 0,
    "kept_entries": 64,
}
"""Values of a plan that a reader need not look at."""


def shrink(plan: Plan) -> Plan:
    """Return the smallest plan found with the same violation; the plan itself if it has none."""
    violation = play(plan).violation
    if violation is None:
        return plan
    plays, smaller = 0, True
    while smaller and plays < MOST_PLAYS:
        smaller = False
        for candidate in _candidates(plan):
            plays += 1
            found = play(candidate).violation
            if found is not None and found.name == violation.name:
                plan, smaller = candidate, True
                break
            if plays >= MOST_PLAYS:
                break
    return plan


def _candidates(plan: Plan) -> Iterator[Plan]:
    """Yield plans that are simpler than this one, the simplest first."""
    faults, count = plan.faults, len(plan.faults)
    size = count // 2
    while size >= 1:
        for first in range(0, count, size):
            yield replace(plan, faults=faults[:first] + faults[first + size :])
        size //= 2
    last = max((fault.host for fault in faults), default=0)
    if plan.lasting_fault:
        yield replace(plan, lasting_fault=0)
    elif last + 1 < plan.hosts:
        yield replace(
            plan, hosts=last + 1, max_nodes=min(plan.max_nodes, last + 1), min_nodes=min(plan.min_nodes, last + 1)
        )
    for name, value in DEFAULTS.items():
        if getattr(plan, name) != value:
            yield replace(plan, **{name: value})  # type: ignore[arg-type]  # each of its own type
    for number, fault in enumerate(faults):
        for rounder in _rounded(fault):
            yield replace(plan, faults=tuple(sorted((*faults[:number], rounder, *faults[number + 1 :]))))


def _rounded(fault: Fault) -> Iterator[Fault]:
    """Yield a fault with rounder numbers."""
    for digits in (0, 1):
        rounder = replace(fault, at=round(fault.at, digits), span=round(fault.span, digits))
        if rounder != fault and rounder.at > 0:
            yield rounder
