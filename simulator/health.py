"""The definition of a healthy node: one whose host no fault has touched for a while.

A healthy node must not be taken for lost, deposed or excluded, and it reports what it observes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.agent import SimAgent
    from simulator.world import World

HEALTHY_AFTER = 20.0
"""Seconds without a fault after which a node counts as healthy: longer than any time limit and retry."""


def healthy_agent(world: World, node_id: str) -> SimAgent | None:
    """Return the agent of this id, if it runs and is healthy; else None."""
    agent = world.agent(node_id)
    if agent is None or agent.over or agent.leaving or agent.process.frozen or agent.state is None:
        return None
    if agent.state.store_lost:  # for good
        return None
    since = max(agent.started_at, agent.host.faulty_until, world.faulty_until)
    return agent if world.hub.now - since >= HEALTHY_AFTER else None
