"""Rule L13: a resize of workers that save nothing when they are stopped comes when it loses little work.

The check is weaker than the rule, and does without its formula: a node has waited for the longest wait, the round is
young, or the script has just saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.protocol.entries import Entry
from elastic_core.protocol.roster import Phase
from simulator.leave_rules import read_before

if TYPE_CHECKING:
    from simulator.replica import Replica
    from simulator.world import World

MOST_WAITS = 30.0
"""The longest wait of a node, as a multiple of ``resize_wait``."""
FRESH = 10.0
"""The age of a checkpoint, in seconds, up to which a resize is allowed before the longest wait."""
SLACK = 3.0
"""Seconds between a decision and its entry, and between a checkpoint and the row that reports it."""
SHARE = 0.9
"""The least share of a wait that a leader with a fast clock measures."""


def check_resize(world: World, replica: Replica, entry: Entry) -> None:
    """Check a HALT that makes room for waiting nodes."""
    plan, author = world.plan, world.agent(entry.author)
    current = world.checker.histories.newest_round(replica, entry.run)
    if not plan.resize_wait or plan.step_seconds or current is None or author is None or author.supervisor is None:
        return
    session, now = author.supervisor.session, author.host.now()
    round_at, watch = session.ledger.round_at, session.watch
    rows = read_before(world, entry.id, entry.run)
    members = current.group_ranks
    arrivals = [
        newcomer.arrived_at
        for row in rows
        if row.phase is Phase.WAITING and row.info.node_id not in members
        if (newcomer := watch.nodes.get(row.info.node_id)) is not None
    ]
    if not arrivals:
        return
    seen = [row.checkpoint for row in rows if row.info.node_id in members and row.round == current.number]
    known = [checkpoint for checkpoint in seen if checkpoint is not None]
    waited, age = now - max(round_at, min(arrivals)), now - round_at
    if not known:
        early = waited < SHARE * plan.resize_wait and age > plan.resize_wait + SLACK
        world.count("L13 a node has waited for others" if age > plan.resize_wait else "L13 a young round is resized")
        if early:
            world.checker.fail("L13", f"a resize of a round of {age:.1f} s, for which a node waited {waited:.1f} s")
        return
    training = world.training(entry.run, current)
    began = training.saved_at or training.active_at or world.hub.now
    at_stake = min(world.hub.now - began, age)  # a leader that has come since knows of no more
    if waited >= SHARE * MOST_WAITS * plan.resize_wait:
        world.count("L13 a node has waited for as long as it must")
    elif at_stake > FRESH + SLACK:
        world.checker.fail("L13", f"{at_stake:.1f} s of work are lost to a resize, at most {FRESH:.1f} s may be")
    elif training.saved_at is not None:
        world.count("L13 a round is resized right after a checkpoint")
