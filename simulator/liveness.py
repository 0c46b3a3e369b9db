"""Liveness (P1 to P5): the state that a job must reach after all faults have ended, and by when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.protocol.ledger import Ledger
from simulator import round_sizes
from simulator.resizes import MOST_WAITS
from simulator.rules import LOSSES

if TYPE_CHECKING:
    from simulator.agent import SimAgent
    from simulator.workers import Training
    from simulator.world import World

STABLE_SECONDS = 3.0
"""Seconds for which a round must have trained to count."""
MARGIN = 60.0
"""Seconds beyond the fence, the join timeout and the longest wait for a resize that a job may need."""
MOST_CHANGES = 14
"""Rounds or leaders after the end of all faults that are too many (P5)."""


def deadline_seconds(world: World) -> float:
    """Return the seconds within which the job must have reached its final state."""
    return world.plan.fence_after + world.plan.join_timeout + MOST_WAITS * world.plan.resize_wait + MARGIN


def is_reached(world: World) -> bool:
    """Return True if all nodes that can train do, or a verdict has ended the job."""
    living = [agent for agent in world.living() if agent.host is not world.broken_host]
    if not living:
        return True
    trainings = list(world.checker.active_trainings.values())
    return not stale_rows(world) and len(trainings) == 1 and _trains(world, trainings[0], living)


def stale_rows(world: World) -> list[str]:
    """Return the rows of agents that have ended and have no place in a newest round (P2)."""
    newest = [world.newest_round(agent.run) for agent in world.living()]
    if world.store.down:
        return []
    members = {member.node_id for current in newest if current is not None for member in current.members}
    here = {node_id for agent in world.living() for node_id in agent.lineage.ids}  # one that is cut off is not dead
    return [node_id for node_id in world.store.master.rows if node_id not in members and node_id not in here]


def _trains(world: World, training: Training, living: list[SimAgent]) -> bool:
    if training.active_at is None or world.hub.now - training.active_at < STABLE_SECONDS:
        return False
    if world.plan.step_seconds and world.hub.now - training.stepped_at > STABLE_SECONDS + world.plan.step_seconds:
        return False  # a rank holds without end
    members = {member.node_id for member in training.round.members}
    here = {agent.node_id for agent in living}
    if not members <= here or len(world.checker.active_trainings) > 1:
        return False
    able = [agent for agent in living if agent.node_id in members or not _kept_out(world, agent, members)]
    full = round_sizes.largest(world.plan, len(able)) <= len(members)
    return all(_is_placed(world, agent, members, here, full=full) for agent in living)


def _kept_out(world: World, agent: SimAgent, members: set[str]) -> bool:
    return agent.state is not None and _left_out(world, agent, agent.state.ledger, members)


def _is_placed(world: World, agent: SimAgent, members: set[str], here: set[str], *, full: bool) -> bool:
    """Return True if an agent trains, or has a valid reason to have no place."""
    if agent.state is None or agent.leaving:
        return False
    if world.store.down:  # an embedded store ended with its host: members train to the end
        return agent.node_id in members
    ledger: Ledger = agent.state.ledger
    if not ledger.is_live or ledger.leader not in here:
        return False
    return agent.node_id in members or full or _left_out(world, agent, ledger, members)


def _left_out(world: World, agent: SimAgent, ledger: Ledger, members: set[str]) -> bool:
    """L4, L5: return True if its host was lost too often, or is excluded, and no member is on it."""
    counters = ledger.counters
    losses = counters.losses.get(agent.boot_id)
    age = ledger.age(agent.process.clock.now())
    excluded = {one.host_id for one in counters.excluded if one.until is None or age < one.until}
    bad = (losses is not None and losses.count >= LOSSES) or agent.boot_id in excluded
    others = {other.boot_id for node_id in members if (other := world.agent(node_id)) is not None}
    return bad and agent.boot_id not in others


def churn(world: World, rounds: int, leaders: int) -> str:
    """Return a description of changes that go on without end (P5); '' for none."""
    if len(world.checker.rounds) - rounds > MOST_CHANGES:
        return f"{MOST_CHANGES} rounds"
    return f"{MOST_CHANGES} leaders" if world.checker.leaders - leaders > MOST_CHANGES else ""


def describe(world: World) -> str:
    """Return a description of the job's state, for people."""
    whole = [training.round.number for training in world.checker.active_trainings.values()]
    who = [f"{agent.node_id} ({_describe_agent(agent)})" for agent in world.living()]
    dead = f"; rows of the dead: {', '.join(stale_rows(world))}" if stale_rows(world) else ""
    return f"rounds that train: {whole or 'none'}; agents: {', '.join(who) or 'none'}{dead}"


def _describe_agent(agent: SimAgent) -> str:
    state = agent.state
    if state is None:
        return "joining"
    return f"{state.work.value}, {state.row.phase.value} {state.row.round}, head {state.ledger.head.index}"
