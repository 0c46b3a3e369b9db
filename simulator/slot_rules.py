"""Slots, as the leader knew them when it sealed a round: eligible nodes (rule S7), and nodes that are gone (S8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from elastic_core.protocol.entries import Entry, Round
from elastic_core.protocol.roster import NodeRow, Phase, find_gone_nodes
from simulator.health import HEALTHY_AFTER, healthy_agent
from simulator.leave_rules import read_before

if TYPE_CHECKING:
    from simulator.agent import SimAgent
    from simulator.world import World


def check(world: World, before: Entry | None, entry: Entry, body: Round, earlier: Round | None) -> None:
    """S7, I2: a new node has shown that it read of the newest leader, and of all rounds ``before``.

    Counts the rules that decided on this round.
    """
    _check_gone(world, entry, earlier)
    if not body.members:
        return
    agents = [agent for member in body.members if (agent := world.agent(member.node_id)) is not None]
    if max(Counter(agent.boot_id for agent in agents).values(), default=0) > 1:
        world.count("S8 agents of one host have a slot each")
    known = {*body.group_ranks, *(earlier.group_ranks if earlier is not None else ())}
    new = body.group_ranks.keys() - (earlier.group_ranks.keys() if earlier is not None else set())
    for row in read_before(world, entry.id, entry.run):
        if row.info.node_id in new and row.within(entry.epoch).head < entry.anchors.leader:
            why = f"{row.info.node_id} is given a slot and has not shown that it has read of the newest leader"
            world.checker.fail("S7", why)
        elif row.info.node_id in new and before is not None and row.within(entry.epoch).head < before.anchors.latest:
            why = f"{row.info.node_id} is given a slot, and a round that it has not read may have used its offer"
            world.checker.fail("I2", why)
    if len(body.members) < world.plan.max_nodes:
        for row in read_before(world, entry.id, entry.run):
            if row.info.node_id not in known and _is_behind(row, entry):
                world.count("S7 a node that has not read the newest OPEN or LEADER gets no slot")
    if earlier is not None and (proofs := _proofs(world, entry, earlier)):
        for what in proofs:
            world.count(f"S8 {what} shows that a round is over")


def check_row(world: World, row: NodeRow) -> None:
    """S8: a row proves no living node to be gone."""
    agent = world.agent(row.info.node_id)
    others = [] if agent is None else [other for other in agent.host.agents if other.gone_at is None]
    for node_id in find_gone_nodes([row, *(NodeRow(info=other.info) for other in others if other is not agent)]):
        if node_id in {other.node_id for other in others}:
            world.checker.fail("S8", f"{row.info.node_id} shows that {node_id} is gone, and its slot is held")


def _check_gone(world: World, entry: Entry, earlier: Round | None) -> None:
    """S8: a node that is gone is shown to be, if another agent of its host has had the time to look."""
    rows = {row.info.node_id: row for row in read_before(world, entry.id, entry.run)}
    shown = find_gone_nodes(rows.values())
    for node_id in () if earlier is None else earlier.group_ranks:
        agent = world.agent(node_id)
        if agent is None or agent.gone_at is None or node_id in shown or node_id not in rows:
            continue
        if _is_seen(world, entry, agent, agent.gone_at, rows.keys()):
            world.checker.fail("S8", f"{node_id} is gone from its slot, and no node of its host shows it")


def _is_seen(world: World, entry: Entry, agent: SimAgent, gone_at: float, listed: Collection[str]) -> bool:
    """Return True if an entry's author must have read that an agent is gone, from a healthy node of its host."""
    if world.hub.now - gone_at < HEALTHY_AFTER or healthy_agent(world, entry.author) is None:
        return False
    others = [other for other in agent.host.living if other.boot_id == agent.boot_id and other.node_id in listed]
    return any(healthy_agent(world, other.node_id) is not None for other in others)


def _is_behind(row: NodeRow, entry: Entry) -> bool:
    """Return True if a node has no place for that reason alone."""
    wants = row.phase is Phase.WAITING and row.offer is not None and not row.leaving
    seen = row.within(entry.epoch).head >= entry.anchors.leader
    return wants and not seen and row.info.host_id not in entry.counters.bad_hosts(entry.age)


def _proofs(world: World, entry: Entry, earlier: Round) -> set[str]:
    """Return the proofs that a round is over, where only slots prove it and the fence had not passed."""
    if world.checker.histories.halted_for(entry) >= world.plan.fence_after:
        return set()
    rows = {row.info.node_id: row for row in read_before(world, entry.id, entry.run)}
    members, before = earlier.group_ranks, world.checker.histories.written[entry.prev]
    if not members.keys() <= rows.keys() or any(_shows_an_end(rows[member], before, earlier) for member in members):
        return set()
    return {
        _proof(row, rows[member])
        for member in members
        for row in rows.values()
        if member in find_gone_nodes([row, rows[member]])
    }


def _proof(row: NodeRow, gone: NodeRow) -> str:
    if row.info.slot == gone.info.slot:
        return "a newer agent on its slot"
    return "a slot that has become free" if gone.info.slot in row.info.slots.held else "a slot that was free"


def _shows_an_end(row: NodeRow, head: Entry, earlier: Round) -> bool:
    """Return True if a row shows its node's part of a round to be over, for a leader that has read ``head`` (S4)."""
    said = row.within(head.epoch)
    stopped = said.round == earlier.number and said.phase in (Phase.STOPPED, Phase.FINISHED)
    failed = said.incident is not None and said.incident.round == earlier.number
    return stopped or failed or (said.phase is not Phase.RUNNING and said.head >= head.anchors.halt)
