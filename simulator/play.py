"""The run of one plan, and its outcome."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from simulator import assumption_faults, faults, liveness, outages
from simulator.checker import Violation
from simulator.engine import Livelock
from simulator.plan import Plan
from simulator.world import World

POLL_SECONDS = 1.0
"""Seconds between two checks of the job's state."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a plan."""

    violation: Violation | None
    coverage: Counter[str]
    trace: tuple[str, ...]
    """The timeline; () unless requested."""
    broken: dict[str, str]
    """Suspended invariants that did not hold."""
    overlaps: dict[str, float]
    """Seconds for which rounds, or runs, trained at once, where the profile breaks an assumption."""
    ended_at: float
    events: int

    @property
    def digest(self) -> str:
        """Return a digest of the timeline: equal for equal courses of events."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]


def play(plan: Plan, *, traced: bool = False) -> Outcome:
    """Run a plan to its end or the first violation."""
    world = World(plan, traced=traced)
    hub = world.hub
    for fault in plan.faults:
        if fault.kind in outages.DATA_LOSS:
            hub.at(max(0.0, fault.at - assumption_faults.age(fault)), outages.take_snapshot, world, fault)
        hub.at(fault.at, faults.inject, world, fault)
    violations = world.checker.violations
    try:
        hub.run(plan.faults_end_at, lambda: bool(violations))
        if plan.liveness and not violations:
            _watch(world, lambda: bool(violations))
    except Livelock as exc:
        world.checker.fail("livelock", f"{exc}: {liveness.describe(world)}")
    finally:
        hub.close()
    lines = tuple(f"{at:10.3f}  {who:<9} {what}" for at, who, what in world.trace or ())
    overlaps = world.overlaps.most if world.overlaps is not None else {}
    violation = violations[0] if violations else None
    return Outcome(violation, world.coverage, lines, world.checker.broken, overlaps, hub.now, hub.events)


def _watch(world: World, stopped: Callable[[], bool]) -> None:
    """End all faults, and wait until the job reaches its final state."""
    hub, before = world.hub, (len(world.checker.rounds), world.checker.leaders)
    faults.heal(world)
    deadline, arrived = hub.now + liveness.deadline_seconds(world), False
    while not stopped() and hub.now < deadline:
        if world.plan.replace_agents and not world.checker.verdicts:
            faults.start_missing_agents(world)
        hub.run(hub.now + POLL_SECONDS, stopped)
        if churn := liveness.churn(world, *before):
            world.checker.fail("P5", f"{churn} since everything is well: {liveness.describe(world)}")
        if arrived := liveness.is_reached(world):
            return
    if not arrived and not stopped():
        world.checker.fail(
            "P1", f"{liveness.deadline_seconds(world):g} s after everything is well: {liveness.describe(world)}"
        )
