"""Who goes, and who stays: what has finished has finished (rule L7), nobody joins at the end, who is asked to go goes.

What a leader may decide hangs on what it has read: the store keeps, for every entry, the roster that its author had
seen last when it sent it, without the rows that it had removed since: those count for nothing, even if their nodes
are back by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from elastic_core.protocol.entries import Drain, Entry, HaltReason, Round, StopAt
from elastic_core.protocol.node_events import Work
from elastic_core.protocol.roster import NodeRow, Phase

if TYPE_CHECKING:
    from simulator.agent import SimAgent
    from simulator.replica import Replica
    from simulator.world import World

FORGED = "forged"
"""What every row that a stranger has forged has among the peers that it does not reach, and no other."""
LEAVE_SECONDS = 5.0
"""Seconds after which an agent must have begun to leave that has read that it should."""


def check_join(world: World, replica: Replica, entry: Entry) -> None:
    """L7: somebody is to join a live round, although its leader has read that a member has finished."""
    current = world.checker.histories.newest_round(replica, entry.run)
    if current is None or entry.run in world.checker.histories.forked:
        return
    members = {member.node_id for member in current.members}
    for row in read_before(world, entry.id, entry.run):
        if row.info.node_id in members and row.phase is Phase.FINISHED and row.round == current.number:
            world.checker.fail("L7", f"somebody joins, although {row.info.node_id} has finished")


def check_slots(world: World, entry: Entry, body: Round) -> None:
    """Whoever says that it leaves is not given a slot any more."""
    leaving = {row.info.node_id for row in read_before(world, entry.id, entry.run) if row.leaving}
    for member in body.members:
        if member.node_id in leaving:
            world.checker.fail("L7", f"{member.node_id} leaves, and is given a slot in round {body.number}")


def check_leaving(world: World, entry: Entry, body: StopAt, current: Round, planned: HaltReason | None) -> None:
    """Check that a STOP_AT says whether a node of the round leaves, even if it does so only since the PLAN."""
    members = {member.node_id for member in current.members}
    rows = read_before(world, entry.id, entry.run)
    leaving = [row.info.node_id for row in rows if row.leaving and row.info.node_id in members]
    if leaving and planned is HaltReason.RESIZE:
        world.count("STOP_AT a node leaves since the PLAN")
    if body.leaving != (bool(leaving) or planned is not HaltReason.RESIZE):
        said = "somebody leaves" if body.leaving else "all stay"
        world.checker.fail("PLAN", f"entry {entry.index} says that {said}; planned: {planned}, leaving: {leaving}")


def check_finish_kept(world: World, agent: SimAgent, finished: int) -> None:
    """L7: a node whose workers have finished round ``finished`` never says that they were stopped."""
    state = agent.state
    if not finished or state is None or world.lost_data:
        return
    if state.phase is Phase.STOPPED and state.round == finished:
        world.checker.fail("L7", f"{agent.node_id} had finished round {finished}, and says that it was stopped")


def check_leaver_exits(world: World, agent: SimAgent) -> None:
    """Who leaves is gone once the round is halted and its workers are."""
    state = agent.state
    if state is not None and state.leaving is not None and state.work is Work.NONE and state.ledger.halt is not None:
        world.checker.fail("L7", f"{agent.node_id} leaves, has no workers, and still stays after the HALT")


def check_drain_obeyed(world: World, agent: SimAgent, entries: Sequence[Entry]) -> None:
    """Who reads a DRAIN that names it leaves."""
    if any(isinstance(entry.body, Drain) and agent.node_id in entry.body.nodes for entry in entries):
        world.hub.at(world.hub.now + LEAVE_SECONDS, _check_leaving, world, agent)


def _check_leaving(world: World, agent: SimAgent) -> None:
    state, departing = agent.state, agent.supervisor._departure if agent.supervisor is not None else None
    undisturbed = world.hub.now - max(agent.host.faulty_until, world.faulty_until) >= LEAVE_SECONDS
    held = agent.process.frozen or agent.host.suspended
    if agent.over or departing is None or state is None or held or not undisturbed:
        return
    if state.leaving is None and not departing._finishing and state.ledger.closed is None and not state.store_lost:
        world.checker.fail("DRAIN", f"{agent.node_id} was asked to leave {LEAVE_SECONDS:g} s ago, and does not")


def read_before(world: World, what: str, run: str) -> list[NodeRow]:
    """Return the rows of a run's nodes as they were last read before an entry was sent, by its id, or the like.

    Rows that strangers have forged are none of that.
    """
    rows: list[NodeRow] = [seen.value.value for seen in world.store.based_on.get(what, ())]  # type: ignore[attr-defined]
    return [row for row in rows if row.run == run and FORGED not in row.unreachable]
