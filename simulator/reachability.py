"""L5: a node that the others do not reach is excluded, not restarted forever, and no other node is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.protocol.entries import Closed, Entry, Halt, HaltReason, Member, Round
from simulator.peers import can_reach

if TYPE_CHECKING:
    from simulator.world import Host, World

MOST_FAILED_ROUNDS = 2
"""Consecutive failures of the same members because one is unreachable: the second one has reports."""
FAILED = (HaltReason.FAILURE, HaltReason.GIVING_UP)
"""Reasons of a HALT after which members probe each other."""
UNDISTURBED_SECONDS = 20.0
"""Seconds without another fault."""


def check_seal(world: World, before: Entry | None, entry: Entry, body: Round, earlier: Round | None) -> None:
    """Check that no third round has members that cannot reach each other, and that no other host is excluded."""
    known = {one.host_id for one in before.counters.excluded} if before is not None else set[str]()
    for one in entry.counters.excluded:
        if one.host_id not in known and one.until is None:  # for a time, it is a policy that excludes it
            world.count("L5 a host is left out")
            _check_blame(world, one.host_id, earlier)
    _check_patience(world, before, body)


def check_closed(world: World, entry: Entry, body: Closed) -> None:
    """Check that a failure because of one unreachable member does not end a job that can go on."""
    current = world.newest_round(entry.run)
    if body.success or current is None or body.incident is None or "--on_node_loss" in body.why:
        return
    hosts = _hosts(world, current)
    if "no restart is left" not in body.why or not _is_partitioned_by_one(world, hosts):
        return
    since = _isolated(hosts)[0].isolated_at
    vain = any(t.round.offer.id == current.offer.id and t.connect_failed_at > since for t in world.trainings())
    if vain and _is_undisturbed(world, hosts):
        world.checker.fail("L5", f"the job ends, although only {_isolated(hosts)[0].name} is not reached: {body.why}")


def _check_blame(world: World, host_id: str, earlier: Round | None) -> None:
    """Check that no other member is blamed where one of three or more alone is faulty."""
    hosts = _hosts(world, earlier) if earlier is not None else []
    troubled = [host for host in hosts if world.hub.now - host.faulty_until < UNDISTURBED_SECONDS]
    if len(hosts) >= 3 and len(troubled) <= 1 and world.hub.now - world.faulty_until > UNDISTURBED_SECONDS:
        blamed = [host for host in hosts if host.boot_id == host_id]
        if blamed and blamed != troubled:
            who = ", ".join(host.name for host in troubled) or "no host"
            world.checker.fail("L5", f"{blamed[0].name} is left out, and {who} is in trouble")


def _check_patience(world: World, before: Entry | None, body: Round) -> None:
    hosts = _hosts(world, body)
    if not _is_partitioned_by_one(world, hosts) or not _is_undisturbed(world, hosts):
        return
    since, failed = _isolated(hosts)[0].isolated_at, _failed_in_a_row(world, before, body.members)
    vain = [t for t in world.trainings() if t.connect_failed_at > since and t.round.offer.id in failed]
    if len(vain) >= MOST_FAILED_ROUNDS:
        why = f"{len(vain)} rounds of these members have failed because {_isolated(hosts)[0].name} is not reached"
        world.checker.fail("L5", f"round {body.number} is sealed, and {why}")


def _failed_in_a_row(world: World, at: Entry | None, members: tuple[Member, ...]) -> set[str]:
    """Return the consecutive newest rounds up to this entry, by their offers, of these members that all failed.

    A round that ended otherwise, or had other members, ends the sequence: earlier findings do not count.
    """
    histories, failed = world.checker.histories, set[str]()
    while at is not None:
        if isinstance(at.body, Halt) and at.body.reason not in FAILED:
            break
        if isinstance(at.body, Round):
            if histories.resolved[at.id].members != members:
                break
            failed.add(at.body.offer.id)
        at = histories.written.get(at.prev)
    return failed


def _is_partitioned_by_one(world: World, hosts: list[Host]) -> bool:
    """Return True if these could train without the one host that reaches none of the others."""
    enough = len(hosts) - 1 >= world.plan.min_nodes and world.plan.replace_lost
    others = [host for host in hosts if not host.isolated]
    return enough and len(others) == len(hosts) - 1 and all(can_reach(one, other) for one in others for other in others)


def _isolated(hosts: list[Host]) -> list[Host]:
    return [host for host in hosts if host.isolated]


def _is_undisturbed(world: World, hosts: list[Host]) -> bool:
    """Return True if there was no other fault from a while before one host was isolated."""
    since = _isolated(hosts)[0].isolated_at - UNDISTURBED_SECONDS
    return world.faulty_until < since and all(h.faulty_until < since for h in hosts if not h.isolated)


def _hosts(world: World, current: Round) -> list[Host]:
    agents = [world.agent(member.node_id) for member in current.members]
    return [agent.host for agent in agents if agent is not None]
