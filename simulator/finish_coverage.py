"""Coverage of rounds whose members finish one after another (rule L7); nothing is checked here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.protocol.entries import Entry, Round
from elastic_core.protocol.failure_detector import is_lost
from elastic_core.protocol.leader import RESIZE_PAUSE_FACTOR, RESIZE_PAUSE_SECONDS
from elastic_core.protocol.roster import Phase
from simulator.leave_rules import read_before

if TYPE_CHECKING:
    from simulator.agent import SimAgent
    from simulator.replica import Replica
    from simulator.world import World

ENOUGH = 1.0
"""Seconds within which a leader admits a node that may join."""


def heartbeat_of(replica: Replica, node_id: str) -> int:
    """Return a node's heartbeat on a server."""
    row = replica.rows.get(node_id)
    return 0 if row is None else row.heartbeat


def note_restart(world: World, entry: Entry, body: Round, earlier: Round) -> None:
    """Count restarts after a member has finished, and nodes that may join because of them."""
    halt = world.checker.histories.halt_before(entry)
    before, after = earlier.group_ranks.keys(), body.group_ranks.keys()
    rows = [row for row in read_before(world, entry.id, entry.run) if row.info.node_id in before]
    finished = {row.info.node_id for row in rows if row.phase is Phase.FINISHED and row.round == earlier.number}
    if not finished or (halt is not None and halt.incident is None):
        return
    if finished & after:
        world.count("L7 a failure starts those again that had finished")
    if after - before:
        world.count("L7 a failure lets others join again")


def note_success(world: World, replica: Replica, entry: Entry, current: Round) -> None:
    """Count members that finished before the end, were lost after it, or kept others from joining."""
    found = [world.worker(entry.run, current, member.node_id) for member in current.members]
    done = {worker.node_id: worker.done_at for worker in found if worker is not None and worker.done_at is not None}
    for node_id in done:
        if heartbeat_of(replica, node_id) > world.checker.heartbeats.get(node_id, 0) + 1:
            world.count("L7 a node that has finished heartbeats until CLOSED")
    leader = world.agent(entry.author)
    if leader is None or leader.supervisor is None or not done:
        return
    session, now = leader.supervisor.session, leader.host.now()
    for node_id in done.keys() - {leader.node_id}:
        if is_lost(session.watch, node_id, session.ledger.settings.timing, now):
            world.count("L7 a node that has finished is lost, and the others finish")
    if len(current.members) < world.plan.max_nodes and not world.plan.resize_wait:
        _note_kept_out(world, entry, leader, world.hub.now - min(done.values()), world.hub.now - max(done.values()))


def _note_kept_out(world: World, entry: Entry, leader: SimAgent, first: float, last: float) -> None:
    """Count nodes that could have joined only between the first and the last finish; both are seconds ago."""
    assert leader.supervisor is not None
    session, now = leader.supervisor.session, leader.host.now()
    ledger, watch = session.ledger, session.watch
    resize, allowed_at = ledger.last_resize, ledger.round_at
    if resize is not None:
        allowed_at = resize.over_at + max(RESIZE_PAUSE_SECONDS, RESIZE_PAUSE_FACTOR * resize.cost)
    members = ledger.round.group_ranks if ledger.round is not None else {}
    for row in read_before(world, entry.id, entry.run):
        seen = watch.nodes.get(row.info.node_id)
        if seen is None or row.info.node_id in members or row.phase is not Phase.WAITING or row.leaving:
            continue
        could = max(seen.arrived_at, allowed_at, watch.gap_at)
        if first > now - could > last + ENOUGH and row.info.host_id not in entry.counters.bad_hosts(entry.age):
            world.count("L7 no node joins after the first has finished")
