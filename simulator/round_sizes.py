"""Rules L15 and L16: the sizes of ``--nnodes``, and the priority of returning nodes over spares.

The sizes come from the plan's own list, without the functions of the rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.protocol.entries import Counters, Entry, Round
from elastic_core.protocol.failure_detector import is_lost
from elastic_core.protocol.roster import NodeRow, Phase
from simulator.leave_rules import read_before

if TYPE_CHECKING:
    from simulator.plan import Plan
    from simulator.world import World

LOSSES = 3
"""Losses after which a host does not count as returning (rule L4)."""


def largest(plan: Plan, nodes: int) -> int:
    """Return the size of a round out of so many nodes."""
    sizes = plan.sizes or range(plan.min_nodes, plan.max_nodes + 1)
    return max([0, *(size for size in sizes if size <= nodes)])


def check_resize(world: World, entry: Entry, current: Round | None) -> None:
    """L15: a round is halted for newcomers only if enough of them wait for the next size."""
    if not world.plan.sizes or current is None:
        return
    waiting = [row for row in read_before(world, entry.id, entry.run) if _waits(row, current)]
    together = len(current.members) + len(waiting)
    if largest(world.plan, together) <= len(current.members):
        why = f"{len(waiting)} node(s) wait, and no round of {len(current.members)} to {together} nodes follows"
        world.checker.fail("L15", f"round {current.number} is halted for newcomers: {why}")
    world.count("L15 a round grows to the next size")


def check_round(world: World, entry: Entry, members: set[str], earlier: Round | None) -> None:
    """L15: a round has one of the sizes. L16: a waiting node on a host that was lost goes before spares."""
    plan = world.plan
    if plan.sizes and len(members) not in plan.sizes:
        world.checker.fail("L15", f"a round of {len(members)} nodes, and the sizes are {plan.sizes}")
    if plan.sizes and earlier is not None:
        stayed = [row for row in read_before(world, entry.id, entry.run) if row.info.node_id in earlier.group_ranks]
        if any(row.phase is Phase.STOPPED and not row.leaving and row.info.node_id not in members for row in stayed):
            world.count("L15 a member that is well has no place in the next size")
    author = world.agent(entry.author)
    if author is None or author.supervisor is None or earlier is None:
        return
    session, now = author.supervisor.session, author.host.now()
    watch, timing = session.watch, session.ledger.settings.timing
    before = session.ledger.counters  # what the leader knew when it decided
    known = {host for host, losses in before.losses.items() if losses.count < LOSSES - 1} - before.bad_hosts(entry.age)
    ready = [
        row
        for row in read_before(world, entry.id, entry.run)
        if _waits(row, earlier)
        and row.offer is not None
        and row.within(entry.epoch).head >= max(entry.anchors.leader, session.ledger.head.anchors.latest)
        and row.info.node_id in watch.nodes
        and not is_lost(watch, row.info.node_id, timing, now)
    ]
    new = members - earlier.group_ranks.keys()
    left = {agent.info.host_id for i in earlier.group_ranks if (agent := world.agent(i)) is not None and agent.leaving}
    others = [row for row in ready if row.info.node_id in new and row.info.host_id not in left]
    spares = [row for row in others if row.info.host_id not in before.losses]
    kept_out = [row for row in ready if row.info.node_id not in members and row.info.host_id in known]
    if kept_out and not spares:
        return
    if kept_out and not any(row.info.host_id in _lost_now(entry, before) for row in spares):
        late = f"{spares[0].info.node_id} gets a place, and {kept_out[0].info.node_id} waits on a host of the job"
        world.checker.fail("L16", late)
    if any(row.info.node_id in new and row.info.host_id in known for row in ready) and len(ready) > len(new):
        world.count("L16 a returning node goes before a spare")


def _lost_now(entry: Entry, before: Counters) -> set[str]:
    """Return the hosts whose loss this round counts; a node on one of them returns too."""
    return entry.counters.losses.keys() - before.losses.keys()


def _waits(row: NodeRow, current: Round) -> bool:
    return row.phase is Phase.WAITING and not row.leaving and row.info.node_id not in current.group_ranks
