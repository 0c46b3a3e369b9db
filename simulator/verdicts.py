"""A verdict's delay of the next round (L11), its exclusion of a host (L12), and the failure that it judges (L9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.incidents import Action, History, Incident, Verdict
from elastic_core.protocol.entries import Entry, Halt, HaltReason, Round
from simulator import leave_rules

if TYPE_CHECKING:
    from simulator.world import World

DRIFT = 0.9
"""The least share of a delay, by the fastest clock of a plan."""


def verdict(world: World, _incident: Incident, _history: History) -> Verdict:
    """Return the verdict of the plan's policy on a failure while restarts are left."""
    plan = world.plan
    if plan.exclude_for:
        return Verdict(Action.EXCLUDE_HOST, "its host failed", delay=plan.delay, exclude_for=plan.exclude_for)
    return Verdict(Action.RESTART, "restarts are left", delay=plan.delay)


def check_round(world: World, entry: Entry, body: Round, before: Entry | None, earlier: Round | None) -> None:
    """Check that no round begins before its delay is over, or takes an excluded host while others suffice."""
    if before is None:
        return
    halt = world.checker.histories.halt_before(entry)
    if world.plan.delay and body.charged:
        halted_at = _halted_at(world, entry)
        if halt is None:
            world.checker.fail("L11", f"round {body.number} follows a failure at once")
        elif halted_at is not None and world.hub.now - halted_at < DRIFT * world.plan.delay:
            world.checker.fail("L11", f"round {body.number} follows after {world.hub.now - halted_at:.1f} s")
        else:
            world.count("L11 a round is delayed")
    resized = halt is not None and halt.reason is HaltReason.RESIZE
    stays = {member.node_id for member in earlier.members} if resized and earlier is not None else set[str]()
    if not body.same_as and halt is not None:
        _check_excluded(world, entry, body, before, stays)
    if body.charged and earlier is not None:
        judged = world.checker.judged.get((entry.author, earlier.offer.id))
        if judged is not None and entry.counters.failures[-1].failure.host != judged.host:
            world.checker.fail("L9", f"round {body.number} names another failure than that of {judged.node_id}")
        check_judged_failure(world, entry, earlier, world.checker.histories.resolved[entry.id])


def check_judged_failure(world: World, entry: Entry, earlier: Round, staying: Round) -> None:
    """L9: the failure judged in the round ``earlier`` follows from no failure that a staying member has reported."""
    judged = world.checker.judged.get((entry.author, earlier.offer.id))
    if judged is None or not judged.follows_peer:
        return
    world.count("L9 what follows from a peer's loss is judged, since nothing else is known")
    members = {member.node_id for member in staying.members}
    for row in leave_rules.read_before(world, entry.id, entry.run):
        cause = row.incident
        known = cause is not None and cause.round == earlier.number and not cause.follows_peer
        if known and row.info.node_id in members:
            world.checker.fail("L9", f"{judged.node_id} is judged; {row.info.node_id} has failed by itself")


def _halted_at(world: World, entry: Entry) -> float | None:
    """Return the time of the HALT before an entry; None if the run was resumed since."""
    written = world.checker.histories.written
    while (before := written.get(entry.prev)) is not None:
        if isinstance(before.body, Halt):
            return world.checker.halted_at[before.id]
        entry = before
    return None


def _check_excluded(world: World, entry: Entry, body: Round, before: Entry, stays: set[str]) -> None:
    agents = [agent for member in body.members if (agent := world.agent(member.node_id)) is not None]
    out = before.counters.excluded_at(entry.age)
    admitted = {one.host_id for one in before.counters.excluded} - out.keys()
    if any(agent.boot_id in admitted for agent in agents):
        world.count("L12 a host is admitted again")
    good = {agent.boot_id for agent in agents if agent.node_id in stays}
    bad = [agent for agent in agents if agent.boot_id in out.keys() - good]
    if bad and len(agents) - len(bad) >= world.plan.min_nodes:
        world.checker.fail("L12", f"round {body.number} takes {bad[0].node_id}, whose host is excluded")
