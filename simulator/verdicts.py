"""A verdict's delay of the next round (L11), its exclusion of a host (L12), and the failure that it judges (L9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.incidents import Action, History, Incident, Verdict
from elastic_core.protocol.entries import Entry, Halt, HaltReason, Round
from elastic_core.protocol.leader_view import REPLACED_SECONDS
from simulator import leave_rules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elastic_core.protocol.roster import NodeRow
    from simulator.world import World

DRIFT = 0.9
"""The least share of a delay, by the fastest clock of a plan."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A question of a leader to its policies: the failure, the time, and the nodes whose own causes it knew then."""

    incident: Incident
    at: float
    known: frozenset[str]


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
        if judged is not None and entry.counters.failures[-1].failure.host != judged.incident.host:
            world.checker.fail("L9", f"round {body.number} names another failure than {judged.incident.node_id}'s")
        check_judged_failure(world, entry, earlier, world.checker.histories.resolved[entry.id])


def check_judged_failure(world: World, entry: Entry, earlier: Round, staying: Round) -> None:
    """L9: the failure judged in the round ``earlier`` follows from no failure that a staying member has reported.

    A member that is suspected after the HALT is not waited for: its report may come once the policies are asked.
    """
    judged = world.checker.judged.get((entry.author, earlier.offer.id))
    if judged is None or not judged.incident.follows_peer:
        return
    world.count("L9 what follows from a peer's loss is judged, since nothing else is known")
    halted_at = None if world.checker.histories.halt_before(entry) is None else _halted_at(world, entry)
    waited = halted_at is not None and judged.at - halted_at >= DRIFT * REPLACED_SECONDS
    members = {member.node_id for member in staying.members}
    for node_id in members & own_causes(leave_rules.read_before(world, entry.id, entry.run), earlier.number):
        if node_id in judged.known or not waited:
            world.checker.fail("L9", f"{judged.incident.node_id} is judged; {node_id} has failed by itself")
        world.count("L9 the cause is reported once the policies are asked")


def own_causes(rows: Iterable[NodeRow], number: int) -> frozenset[str]:
    """Return the nodes whose rows report a failure in round ``number`` that follows from no other."""
    reports = [(row.info.node_id, row.incident) for row in rows if row.incident is not None]
    return frozenset(node_id for node_id, one in reports if one.round == number and not one.follows_peer)


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
