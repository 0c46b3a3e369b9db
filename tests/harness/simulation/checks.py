"""Health checks before a node enters (rule L17): a check takes a drawn time, and passes or fails by lot.

Here an agent is one node; in production one process is several nodes, one after the other. A *lineage* is all nodes of
one such process. Whoever is asked to leave, as any of them, must be gone soon, and must not enter again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from elastic_core.exit_codes import ExitCode
from elastic_core.node_checks import ChosenCheck, NodeCheck
from elastic_core.plugins.host_end import HostEnd
from elastic_core.protocol.entries import Closed, Drain
from elastic_core.session.join import Applicant, Joined, join
from elastic_core.session.ledger_watch import Lookout
from simulation import forgetting

if TYPE_CHECKING:
    from elastic_core.rendezvous.backend import RendezvousBackend
    from elastic_core.session.arrival import Arrival
    from elastic_core.session.runtime import Runtime
    from simulation.agent import SimAgent
    from simulation.plan import Fault
    from simulation.world import Host, World

HEEDED = 12.0
"""Seconds without any trouble after which a lineage that was asked to leave is about to, and a request is answered."""
SLOW = ChosenCheck("check", NodeCheck(command=["check"]))
"""What tells the supervisor that nodes are checked by a process; no process is started."""


@dataclass
class Lineage:
    """All nodes that one process has been."""

    agent: SimAgent
    """The newest."""
    host_end: HostEnd
    ids: set[str] = field(default_factory=set)
    """What the roster has called it."""


def enter(
    agent: SimAgent, store: RendezvousBackend, applicant: Applicant, means: Runtime, arrival: Arrival | None
) -> Joined | Closed | tuple[int, str]:
    """Check the node, and join; return how the agent ends if it does not."""
    world, plan = agent.host.world, agent.host.world.plan
    if not plan.check or arrival is None:
        return join(store, applicant, means, arrival)
    agent.interruption = stop = means.event()
    lookout = Lookout(store, applicant, means, arrival, tell=stop.set)
    for node in lookout.former:
        agent.lineage.ids.add(node.node_id)
        world.lineages[node.node_id] = agent.lineage
    announced: list[str] = []
    try:
        lookout.wait_until_entered(1.0)
        agent.lineage.host_end.heard_by(lambda why, *_: (announced.append(why), stop.set())[0])
        lasts, healthy = plan.check * world.hub.random.random(), world.hub.random.random() >= plan.sick
        stop.wait(lasts)
        if agent.signalled:
            world.count("L17 a signal ends a check")
            return 143, "received SIGTERM"
        if announced:
            world.count("L17 a notice ends a check")
            return 143, announced[0]
        if (verdict := lookout.verdict()) is not None:
            return verdict
        lookout.stop()
        if lookout.drained:
            world.count("L17 a drain ends a check")
            return 143, lookout.drained
        if not healthy:
            world.count("L17 a check fails")
            return ExitCode.UNHEALTHY, "a health check failed"
        agent.former = lookout.former
        joined = join(store, replace(applicant, former=lookout.former), means, arrival)
        if isinstance(joined, Joined) and joined.drained:
            world.count("L17 a node joins, and has been drained before")
        return joined
    finally:
        if not world.hub.over:
            lookout.close()


def note_drain(world: World, body: Drain) -> None:
    """Record a DRAIN."""
    for node_id in body.nodes:
        if (lineage := world.lineages.get(node_id)) is not None:
            expect_gone(world, lineage, "a DRAIN")


def expect_gone(world: World, lineage: Lineage, asked: str) -> None:
    """Check later that a lineage leaves which was asked to."""
    if world.plan.check:
        world.hub.at(world.hub.now + HEEDED, _check_gone, world, lineage, asked)


def _check_gone(world: World, lineage: Lineage, asked: str) -> None:
    agent = lineage.agent
    state, supervisor = agent.state, agent.supervisor
    if agent.over or agent.leaving or not _is_calm(world, agent.host) or agent.process.frozen:
        return
    if state is not None and (state.ledger.closed is not None or state.store_lost):
        return
    if supervisor is not None and supervisor._departure._finishing:
        return
    world.truth.violated("L17", f"{agent.node_id} was asked to leave by {asked} {HEEDED:g} s ago, and does not")


def request_drain(world: World, host: Host) -> None:
    """Record that ``elastic drain`` asks for a host: a node that is being checked is asked as well."""
    for agent in host.living if world.plan.check else ():
        if agent.is_checked:
            world.hub.at(world.hub.now + HEEDED, _check_answered, world, agent)


def _check_answered(world: World, agent: SimAgent) -> None:
    if agent.is_checked and not agent.over and all(_is_calm(world, host) for host in world.hosts if host.living):
        world.truth.violated("L17", f"{agent.node_id} is being checked, and elastic drain has had no answer")


def _is_calm(world: World, host: Host) -> bool:
    undisturbed = world.hub.now - max(host.troubled_until, world.troubled_until) >= HEEDED
    return undisturbed and forgetting.aware(world, host, HEEDED)


def announce(world: World, host: Host, fault: Fault) -> bool:
    """Let a plugin learn that the host is taken away in ``span`` seconds; nobody takes it away."""
    if host.suspended or not host.living:
        return False
    lineage = host.living[-1].lineage
    if lineage.agent.process.frozen:
        return False
    lineage.host_end.leave("the cloud takes this machine away", fault.span)
    expect_gone(world, lineage, "a notice")
    return True


KINDS = {"notice": announce}
