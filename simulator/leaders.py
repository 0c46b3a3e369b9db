"""Leaders that live for less time than the fence: a halted job continues as under one leader (rule S4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from elastic_core.protocol.entries import Entry
from simulator import outages

if TYPE_CHECKING:
    from simulator.agent import SimAgent
    from simulator.plan import Fault
    from simulator.replica import Replica
    from simulator.world import Host, World

DRIFT = 1.06
"""Factor by which the fence may last longer: clocks drift, and each author counts from its own read."""


def _cut_members(world: World, host: Host, fault: Fault) -> bool:
    """Cut the hosts of the newest round's members off from the store for ``span``; their workers continue."""
    current = newest(world)
    if current is None:
        return False
    round = world.newest_round(current.run)
    hosts = {
        agent.host.number: agent.host for m in (round.members if round else ()) if (agent := world.agent(m.node_id))
    }
    for one in hosts.values():
        outages.cut_off(world, one, fault.span)
        one.faulty_until = max(one.faulty_until, world.hub.now + fault.span)
    return bool(hosts)


def hosts_of_members(world: World) -> list[Host]:
    """Return the hosts of the members of the newest round."""
    entry = newest(world)
    current = None if entry is None else world.newest_round(entry.run)
    agents = [world.agent(member.node_id) for member in (() if current is None else current.members)]
    return list({agent.host.number: agent.host for agent in agents if agent is not None}.values())


def _kill_leader(world: World, host: Host, fault: Fault) -> bool:
    """Kill the leader by SIGKILL; its warden notices after ``span``, and a new agent starts ``value`` later."""
    agent = leader(world)
    if agent is None or agent.over or agent.host.suspended:
        return False
    agent.kill()
    agent.host.faulty_until = max(agent.host.faulty_until, world.hub.now + fault.span)
    world.hub.at(world.hub.now + fault.span, agent.group.on_agent_exit)
    world.hub.at(world.hub.now + fault.span + fault.value, _start_again, agent)
    return True


def _start_again(agent: SimAgent) -> None:
    if not agent.host.living and not agent.host.suspended:
        agent.host.start(agent.uid)


def leader(world: World) -> SimAgent | None:
    """Return the leader's agent, by the newest entry."""
    entry = newest(world)
    return None if entry is None else world.agent(entry.leader)


def newest(world: World) -> Entry | None:
    """Return the newest entry by a node, on the server that all nodes use in the end."""
    return world.checker.histories.newest(world.store.master)


def expect_end(world: World, replica: Replica, halt: Entry) -> None:
    """Schedule a check that a HALT is followed by a round or the end of the run, under any leader."""
    if world.plan.leader_lifetime:
        within = DRIFT * world.plan.fence_after + 2 * world.plan.leader_lifetime  # there may be no leader at its end
        world.hub.at(world.hub.now + within, check_end, world, replica, halt, f"{within:g} s after")


def check_end(world: World, replica: Replica, halt: Entry, when: str) -> None:
    """P1: a HALT has been followed by another entry of consequence."""
    head = world.checker.histories.newest(replica)
    if head is not None and head.run == halt.run and head.anchors.halt == halt.index:
        came = head.term - halt.term
        world.checker.fail("P1", f"{when} HALT {halt.index} nothing has followed, and {came} leader(s) have come since")


KINDS: dict[str, Callable[[World, Host, Fault], bool]] = {"members": _cut_members, "leader": _kill_leader}
