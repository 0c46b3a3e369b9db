"""Whom a chair knew when it seated some of them: who may have a place (rule S7), and whose seat another has (S8)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from elastic_core.rendezvous.ledger import Entry, Round
from elastic_core.rendezvous.rows import NodeRow, Phase
from simulation.endings import read_before

if TYPE_CHECKING:
    from simulation.world import World


def check(world: World, entry: Entry, body: Round, earlier: Round | None) -> None:
    """S7: who is new has shown that it read of the newest chair. Count what the rules have done to such a round."""
    if not body.members:
        return
    agents = [agent for member in body.members if (agent := world.agent(member.node_id)) is not None]
    if max(Counter(agent.boot_id for agent in agents).values(), default=0) > 1:
        world.count("S8 agents of one host have a seat each")
    known = {*body.group_ranks, *(earlier.group_ranks if earlier is not None else ())}
    new = body.group_ranks.keys() - (earlier.group_ranks.keys() if earlier is not None else set())
    for row in read_before(world, entry.id, entry.run):
        if row.info.node_id in new and row.within(entry.epoch).head < entry.anchors.chair:
            why = f"{row.info.node_id} is seated and has not shown that it has read of the newest chair"
            world.truth.violated("S7", why)
    if len(body.members) < world.plan.max_nodes:
        for row in read_before(world, entry.id, entry.run):
            if row.info.node_id not in known and _is_behind(row, entry):
                world.count("S7 who has not seen the newest OPEN or CHAIR is not seated")
    if earlier is not None and _superseded(world, entry, earlier):
        world.count("S8 a newer agent on its seat shows that a round is over")


def _is_behind(row: NodeRow, entry: Entry) -> bool:
    """Whether one has no place for that reason only."""
    wants = row.phase is Phase.WAITING and row.offer is not None and not row.leaving
    seen = row.within(entry.epoch).head >= entry.anchors.chair
    return wants and not seen and row.info.host_id not in entry.counters.bad_hosts()


def _superseded(world: World, entry: Entry, earlier: Round) -> bool:
    """Whether nothing else has shown that a round is over, and the fence had not yet passed."""
    if world.truth.histories.halted_for(entry) >= world.plan.fence_after:
        return False
    looks = {seen.node_id: seen for seen in world.store.based_on.get(entry.id, ())}
    rows: dict[str, NodeRow] = {node_id: seen.value.value for node_id, seen in looks.items()}  # type: ignore[attr-defined]
    members, before = earlier.group_ranks, world.truth.histories.written[entry.prev]
    if not members.keys() <= rows.keys() or any(_shows_an_end(rows[member], before, earlier) for member in members):
        return False
    return any(
        (row.info.host_id, row.info.seat) == (rows[member].info.host_id, rows[member].info.seat)
        and looks[node_id].serial > looks[member].serial
        for member in members
        for node_id, row in rows.items()
    )


def _shows_an_end(row: NodeRow, head: Entry, earlier: Round) -> bool:
    """Whether a row says that its node's part of a round is over, for a chair that has read up to ``head`` (S4)."""
    said = row.within(head.epoch)
    stopped = said.round == earlier.number and said.phase in (Phase.STOPPED, Phase.FINISHED)
    failed = said.incident is not None and said.incident.round == earlier.number
    return stopped or failed or (said.phase is not Phase.RUNNING and said.head >= head.anchors.halt)
