"""Nodes that leave and nodes that finish: no node joins once a member has finished (rule L7), and a leaving node ends.

A leader decides by what it has read: for each entry, the store keeps the roster that its author had last read when it
sent the entry, without the rows that it had removed since. Removed rows do not count, even if their nodes return.
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
"""Marks forged rows: an id among their unreachable peers that no other row has."""
LEAVE_SECONDS = 5.0
"""Seconds within which an agent leaves after it has read a request to."""


def check_join(world: World, replica: Replica, entry: Entry) -> None:
    """L7: no node joins a live round whose leader has read that a member has finished."""
    current = world.checker.histories.newest_round(replica, entry.run)
    if current is None or entry.run in world.checker.histories.forked:
        return
    members = {member.node_id for member in current.members}
    for row in read_before(world, entry.id, entry.run):
        if row.info.node_id in members and row.phase is Phase.FINISHED and row.round == current.number:
            world.checker.fail("L7", f"a node joins, although {row.info.node_id} has finished")


def check_slots(world: World, entry: Entry, body: Round) -> None:
    """Check that a node that leaves gets no slot."""
    leaving = {row.info.node_id for row in read_before(world, entry.id, entry.run) if row.leaving}
    for member in body.members:
        if member.node_id in leaving:
            world.checker.fail("L7", f"{member.node_id} leaves, and is given a slot in round {body.number}")


def check_leaving(world: World, entry: Entry, body: StopAt, current: Round, planned: HaltReason | None) -> None:
    """Check that a STOP_AT states whether a node of the round leaves, even one that leaves since the PLAN."""
    members = {member.node_id for member in current.members}
    rows = read_before(world, entry.id, entry.run)
    leaving = [row.info.node_id for row in rows if row.leaving and row.info.node_id in members]
    if leaving and planned is HaltReason.RESIZE:
        world.count("STOP_AT a node leaves since the PLAN")
    if body.leaving != (bool(leaving) or planned is not HaltReason.RESIZE):
        said = "a node leaves" if body.leaving else "all stay"
        world.checker.fail("PLAN", f"entry {entry.index} says that {said}; planned: {planned}, leaving: {leaving}")


def check_finish_kept(world: World, agent: SimAgent, finished: int) -> None:
    """L7: a node whose workers have finished a round never reports that they were stopped."""
    state = agent.state
    if not finished or state is None or world.lost_data:
        return
    if state.row.phase is Phase.STOPPED and state.row.round == finished:
        world.checker.fail("L7", f"{agent.node_id} had finished round {finished}, and says that it was stopped")


def check_leaver_exits(world: World, agent: SimAgent) -> None:
    """Check that a leaving node has ended once its round is halted and its workers are gone."""
    state = agent.state
    if state is not None and state.leaving is not None and state.work is Work.NONE and state.ledger.halt is not None:
        world.checker.fail("L7", f"{agent.node_id} leaves, has no workers, and still stays after the HALT")


def check_drain_obeyed(world: World, agent: SimAgent, entries: Sequence[Entry]) -> None:
    """Check that an agent leaves after it reads a DRAIN with its node id."""
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
    """Return the rows of a run as the author of an entry, by its id, had last read them; without forged rows."""
    rows: list[NodeRow] = [seen.value.value for seen in world.store.based_on.get(what, ())]  # type: ignore[attr-defined]
    return [row for row in rows if row.run == run and FORGED not in row.unreachable]
