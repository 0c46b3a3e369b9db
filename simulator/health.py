"""Who is healthy: a host that no fault has touched for a while is *calm*.

Whoever is calm must not be taken for dead, be deposed, or be thrown out, and sees and says what is to be seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.agent import SimAgent
    from simulator.world import World

HEALTHY_AFTER = 20.0
"""Seconds without any fault after which a node must be known to be healthy: more than any limit and retry."""


def healthy_agent(world: World, node_id: str) -> SimAgent | None:
    """Return the agent of this id, if it runs and nothing has happened to it for long; else None."""
    agent = world.agent(node_id)
    if agent is None or agent.over or agent.leaving or agent.process.frozen or agent.state is None:
        return None
    if agent.state.store_lost:  # for good
        return None
    since = max(agent.started_at, agent.host.faulty_until, world.faulty_until)
    return agent if world.hub.now - since >= HEALTHY_AFTER else None
