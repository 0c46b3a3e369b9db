"""The network between the hosts: workers meet over it, and agents probe their peers over it (rule L5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from elastic_core.agent.probing import PATIENCE, ProbeTarget, neighbours
from elastic_core.protocol.entries import Round
from simulator.engine import expire_after

if TYPE_CHECKING:
    from simulator.world import Host

PROBE_PORT = 29_400
"""The port of the agent on slot 0; others follow."""


def can_reach(one: Host, other: Host) -> bool:
    """Return True if packets pass between two hosts; the kernel answers even if processes are frozen or gone."""
    if one is other:
        return True
    if one.isolated or other.isolated or other.number in one.severed or one.number in other.severed:
        return False
    return not (other.suspended or other.off)


def is_partitioned(current: Round, host_of: dict[str, Host]) -> bool:
    """Return True if members that need each other cannot reach each other: neighbours in a ring, and all rank 0."""
    if not any(host.isolated or host.severed for host in host_of.values()):
        return False
    ids = [member.node_id for member in current.members if member.node_id in host_of]
    needed = [(one, other) for one in ids for other in (*neighbours(current, one), ids[0]) if other in host_of]
    return not all(can_reach(host_of[one], host_of[other]) for one, other in needed)


def unreachable(here: Host, targets: Sequence[ProbeTarget]) -> tuple[str, ...]:
    """Return the targets that this host cannot reach, as the agent's probe does, in virtual time."""
    world = here.world
    hub = world.hub
    task = hub.task()

    def failing(some: Sequence[ProbeTarget]) -> list[ProbeTarget]:
        return [target for target in some if not can_reach(here, world.host_at(target.address))]

    failed = failing(targets)
    expire_after(hub, task, PATIENCE if failed else 2 * world.plan.latency * hub.random.random(), None)
    task.park()
    failed = failing(failed)  # a packet that is sent again may get through
    world.count("L5 a peer is not reached" if failed else "L5 every peer is reached")
    return tuple(dict.fromkeys(target.node_id for target in failed))
