"""Health checks before a node enters (rule L17): a check takes a random time, and passes or fails at random.

In the simulation an agent is one node; in production one process is several nodes, one after another. A *lineage* is
all nodes of one process. Once asked to leave, as any of its nodes, it must leave soon and must not enter again.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from elastic_core.errors import RendezvousConnectionError
from elastic_core.exit_codes import ExitCode
from elastic_core.gates import HostEnd
from elastic_core.protocol.entries import Closed, Drain
from elastic_core.protocol.roster import NodeInfo, NodeRow
from elastic_core.session.join import Applicant, Joined, LedgerWatch, join
from simulator import data_loss, leaders
from simulator.channel import Payload
from simulator.engine import Process
from simulator.store import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.rendezvous.backend import RendezvousBackend
    from elastic_core.session.join import Arrival
    from elastic_core.session.runtime import Runtime
    from simulator.agent import SimAgent
    from simulator.plan import Fault
    from simulator.world import Host, World

LEAVE_SECONDS = 12.0
"""Undisturbed seconds after which a lineage that was asked to leave must be leaving."""
ANSWERED = 7.0
"""Undisturbed seconds, on all hosts concerned, after which a request to drain a host must have its answer."""


@dataclass
class Lineage:
    """All nodes of one process."""

    agent: SimAgent
    """The newest agent."""
    host_end: HostEnd
    ids: set[str] = field(default_factory=set)
    """All its node ids in the roster."""


def enter(
    agent: SimAgent, store: RendezvousBackend, applicant: Applicant, runtime: Runtime, arrival: Arrival | None
) -> Joined | Closed | tuple[int, str]:
    """Check the node and join; return the agent's exit code and reason if it does not join."""
    world, plan = agent.host.world, agent.host.world.plan
    if not plan.check_seconds or arrival is None:
        return join(store, applicant, runtime, arrival)
    agent.interruption = stop = runtime.event()
    agent.watch = watch = LedgerWatch(store, applicant, runtime, arrival, tell=stop.set)
    for node in watch.former:
        agent.lineage.ids.add(node.node_id)
        world.lineages[node.node_id] = agent.lineage
    announced: list[str] = []

    def announce_here(why: str, _seconds: float, _at: float) -> None:
        announced.append(why)
        stop.set()

    try:
        watch.wait_until_entered(1.0)
        agent.lineage.host_end.set_listener(announce_here)
        lasts, healthy = (
            plan.check_seconds * world.hub.random.random(),
            world.hub.random.random() >= plan.check_failure_rate,
        )
        _ask_about(agent.host, world.hub.now + lasts * world.hub.random.choice([0.3, 1.0]), 5)
        stop.wait(lasts)
        if agent.signalled:
            world.count("L17 a signal ends a check")
            return 143, "received SIGTERM"
        if announced:
            world.count("L17 a notice ends a check")
            return 143, announced[0]
        if (verdict := watch.verdict()) is not None:
            return verdict
        watch.stop()
        if watch.drained:
            world.count("L17 a drain ends a check")
            return 143, watch.drained
        if not healthy:
            world.count("L17 a check fails")
            return ExitCode.UNHEALTHY, "a health check failed"
        agent.former = watch.former
        joined = join(store, replace(applicant, former=watch.former), runtime, arrival)
        if isinstance(joined, Joined) and joined.drained:
            world.count("L17 a node joins, and has been drained before")
        return joined
    finally:
        if not world.hub.over:
            watch.close()


def note_drain(world: World, body: Drain) -> None:
    """Record a DRAIN."""
    for node_id in body.nodes:
        if (lineage := world.lineages.get(node_id)) is not None:
            expect_gone(world, lineage, "a DRAIN")


def expect_gone(world: World, lineage: Lineage, asked: str) -> None:
    """Schedule a check that a lineage leaves after it was asked to."""
    if world.plan.check_seconds:
        world.hub.at(world.hub.now + LEAVE_SECONDS, _check_gone, world, lineage, asked)


def _check_gone(world: World, lineage: Lineage, asked: str) -> None:
    agent = lineage.agent
    state, supervisor = agent.state, agent.supervisor
    if agent.over or agent.leaving or not _is_undisturbed(world, agent.host, LEAVE_SECONDS) or agent.process.frozen:
        return
    if state is not None and (state.ledger.closed is not None or state.store_lost):
        return
    if supervisor is not None and supervisor._departure._finishing:
        return
    world.checker.fail("L17", f"{agent.node_id} was asked to leave by {asked} {LEAVE_SECONDS:g} s ago, and does not")


def drain(world: World, host: Host, _fault: Fault | None = None) -> bool:
    """Ask the agents of this host to leave, from another host; also one whose node is being checked."""
    if not host.living:
        return False
    other = world.hosts[(host.number + 1) % len(world.hosts)]
    name = f"drain-{world.new_id()}"
    process = Process(name, other.clock, other)
    versions = host.living[-1].info.versions
    info = NodeInfo(node_id=name, host=other.name, host_id=name, slot=0, local_world_size=0, role="", versions=versions)
    ids = {node_id for agent in host.living for node_id in (agent.node_id, *agent.lineage.ids)}
    row = Payload.of(NodeRow(info=info, drain=tuple(sorted(ids))))
    checked = [agent for agent in host.living if agent.is_checked and agent.watch._entered.is_set()]

    def ask() -> None:
        with contextlib.suppress(RendezvousConnectionError):
            Connection(world.store, other.channel, process, hosting=False).enter(name, row)
            for agent in checked:
                _expect_answer(world, agent)

    world.hub.start(process, ask)
    return True


def _expect_answer(world: World, agent: SimAgent) -> None:
    """Schedule a check that a request has its answer, from when there is a leader, who answers."""
    if leaders.leader(world) is not None:
        world.hub.at(world.hub.now + ANSWERED, _check_answered, world, agent)
    elif agent.is_checked and not agent.over:
        world.hub.at(world.hub.now + 1.0, _expect_answer, world, agent)


def _check_answered(world: World, agent: SimAgent) -> None:
    leader = leaders.leader(world)
    if agent.over or not agent.is_checked or leader is None or leader.over or leader.process.frozen:
        return
    if all(_is_undisturbed(world, host, ANSWERED) for host in (agent.host, leader.host)):
        world.checker.fail("L17", f"{agent.node_id} is being checked, and elastic drain has had no answer")


def _is_undisturbed(world: World, host: Host, seconds: float) -> bool:
    undisturbed = world.hub.now - max(host.faulty_until, world.faulty_until) >= seconds
    return undisturbed and data_loss.has_contact(world, host, seconds)


def left_for_checks(agent: SimAgent) -> None:
    """Sometimes drain a node's host or announce its end, just as the node leaves for its checks."""
    _ask_about(agent.host, agent.host.world.hub.now, 2)


def _ask_about(host: Host, at: float, seldom: int) -> None:
    """Sometimes schedule a drain or a notice for about that instant; ``seldom`` is the weight of doing neither."""
    world = host.world
    ask = world.hub.random.choice([drain, announce, *[None] * (2 * seldom)])
    at += world.plan.latency * world.hub.random.uniform(-3.0, 4.0)
    if ask is not None:
        world.hub.at(max(world.hub.now, at), cast("Callable[..., None]", ask), world, host)


def announce(world: World, host: Host, fault: Fault | None = None) -> bool:
    """Announce to a plugin that the host will be gone in ``span`` seconds; the host stays."""
    if host.suspended or not host.living:
        return False
    lineage = host.living[-1].lineage
    if lineage.agent.process.frozen:
        return False
    lineage.host_end.leave("the cloud takes this machine away", 30.0 if fault is None else fault.span)
    expect_gone(world, lineage, "a notice")
    return True


KINDS = {"drain": drain, "notice": announce}
