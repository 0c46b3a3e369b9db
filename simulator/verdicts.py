"""A verdict's delay of the next round (L11), its exclusion of a host (L12), and the failure that it judges (L9)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from elastic_core.incidents import Action, History, Incident, Verdict
from elastic_core.protocol.counters import as_record
from elastic_core.protocol.entries import Entry, Halt, HaltReason, Leader, Round
from elastic_core.protocol.leader_view import LAST_CHANCE_SECONDS, REPLACED_SECONDS
from simulator import leave_rules

if TYPE_CHECKING:
    from elastic_core.protocol.roster import NodeRow
    from simulator.world import World

DRIFT = 0.9
"""The least share of a delay, by the fastest clock of a plan."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A question of a leader to its policies.

    Attributes:
        incident: The failure.
        at: The time.
        rows: The rows that the leader knew then.
        cut_off: Whether the leader had been cut off, and other nodes might not be back yet (L1).
        lost: The nodes of which it had seen no sign of life for so long that they are lost (L1).
    """

    incident: Incident
    at: float
    rows: tuple[NodeRow, ...]
    cut_off: bool
    lost: frozenset[str]


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
        halting = _halt_before(world, entry)
        passed = math.inf if halting is None else world.hub.now - world.checker.halted_at[halting.id]
        if halt is None:
            world.checker.fail("L11", f"round {body.number} follows a failure at once")
        elif passed < DRIFT * world.plan.delay:
            world.checker.fail("L11", f"round {body.number} follows after {passed:.1f} s")
        else:
            world.count("L11 a round is delayed")
    resized = halt is not None and halt.reason is HaltReason.RESIZE
    stays = {member.node_id for member in earlier.members} if resized and earlier is not None else set[str]()
    if not body.same_as and halt is not None:
        _check_excluded(world, entry, body, before, stays)
    if body.charged and earlier is not None:
        judged = world.checker.judged.get((entry.author, earlier.offer.id))
        if judged is not None and not _is_named(judged.incident, entry):
            world.checker.fail("L9", f"round {body.number} names another failure than {judged.incident.node_id}'s")
        check_judged_failure(world, entry, earlier, world.checker.histories.resolved[entry.id])


def check_judged_failure(world: World, entry: Entry, earlier: Round, staying: Round) -> None:
    """L9: the failure judged in the round ``earlier`` follows from no failure that a staying member has reported.

    A member that is lost, or suspected since it has not read the HALT, is not waited for: its report may come once the
    policies are asked.
    """
    judged = world.checker.judged.get((entry.author, earlier.offer.id))
    if judged is None or not judged.incident.follows_peer:
        return
    world.count("L9 what follows from a peer's loss is judged, since nothing else is known")
    members = {member.node_id for member in staying.members}
    suspected = _suspected(world, entry, judged) | judged.lost
    for row in leave_rules.read_before(world, entry.id, entry.run):
        cause = row.incident
        known = cause is not None and cause.round == earlier.number and not cause.follows_peer
        if known and row.info.node_id in members - suspected:
            world.checker.fail("L9", f"{judged.incident.node_id} is judged; {row.info.node_id} has failed by itself")
        if known and row.info.node_id in members:
            world.count("L9 a suspected member reports the cause once the policies are asked")


def _suspected(world: World, entry: Entry, judged: Judgement) -> set[str]:
    """Return the nodes that may have been suspected when the policies were asked, after the HALT before an entry."""
    if (halt := _halt_before(world, entry)) is None:
        return set()
    before = world.checker.histories.written.get(halt.prev)
    deposed = before is not None and isinstance(before.body, Leader)
    unseen = isinstance(halt.body, Halt) and halt.body.reason is HaltReason.UNSEEN
    least = LAST_CHANCE_SECONDS if deposed or unseen else REPLACED_SECONDS
    if judged.cut_off or judged.at - world.checker.halted_at[halt.id] < DRIFT * least:
        return set()
    return {row.info.node_id for row in judged.rows if row.head < halt.index}


def _is_named(judged: Incident, entry: Entry) -> bool:
    """Return True if the newest failure of an entry is the judged one, but for its progress: rows may have more."""
    progress: dict[str, Any] = {"step": None, "new_checkpoint": False, "moved": False}
    return replace(entry.counters.failures[-1].failure, **progress) == replace(as_record(judged), **progress)


def _halt_before(world: World, entry: Entry) -> Entry | None:
    """Return the newest HALT before an entry; None if there is none, or the run was resumed since."""
    written = world.checker.histories.written
    while (before := written.get(entry.prev)) is not None:
        if isinstance(before.body, Halt):
            return before
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
