"""Another program under the same job id (rule S6): it is refused, and the running job is not disturbed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.protocol.entries import Closed, Entry
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.settings import Command
from simulator.health import healthy_agent
from simulator.leave_rules import read_before

if TYPE_CHECKING:
    from simulator.agent import SimAgent
    from simulator.world import World

OWN = Command(name="train", arguments="1")
STARTED = {3.0: Command(name="other", arguments="1"), 4.0: Command(name="train", arguments="2")}
"""The program that a start with this value runs: another one, or the same one with other arguments."""


def differ(world: World, one: Command, other: Command) -> bool:
    """Return True if these are the programs of two jobs."""
    if not world.plan.has_programs:
        return False
    return one.name != other.name or (world.plan.is_unnamed and one.arguments != other.arguments)


def check_joined(world: World, agent: SimAgent, ledger: Ledger) -> None:
    """S6: no node joins another job, nor an unnamed job for one node that has a living node."""
    opener = ledger.settings.command
    if differ(world, agent.command, opener):
        world.checker.fail("S6", f"{agent.node_id} runs {agent.command}, and joins a job that runs {opener}")
    if not (world.plan.has_programs and world.plan.is_unnamed and world.plan.max_nodes == 1) or agent.again:
        return
    for other in world.living():
        if other is not agent and other.run == agent.run and healthy_agent(world, other.node_id) is not None:
            why = f"{agent.node_id} joins a job for one node without a name, and {other.node_id} is its node"
            world.checker.fail("S6", why)


def check_reported(world: World, agent: SimAgent, closed: Closed) -> None:
    """S6: no node reports the verdict on another job."""
    runs = {entry.run for entry in world.checker.verdicts if entry.body == closed}
    commands = [world.checker.histories.commands[run] for run in runs]
    if commands and all(differ(world, agent.command, command) for command in commands):
        why = f"{agent.node_id} runs {agent.command}, and reports the verdict on a job of {commands[0]}"
        world.checker.fail("S6", why)


def check_undisturbed(world: World, entry: Entry) -> None:
    """S6: no decision on a run depends on nodes of other jobs."""
    if not world.plan.has_programs:
        return
    opener = world.checker.histories.commands.get(entry.run)
    for row in read_before(world, entry.id, entry.run):
        agent = world.agent(row.info.node_id)
        if agent is not None and opener is not None and differ(world, agent.command, opener):
            world.checker.fail("S6", f"{agent.node_id} runs {agent.command}, and has a row in a run of {opener}")


def note_exit(world: World, agent: SimAgent, code: int) -> None:
    """Count refused nodes."""
    if world.plan.has_programs and code == 76 and not agent.run:
        what = "another program, or one with other arguments," if agent.command != OWN else "a node"
        world.count(f"S6 {what} is refused")
