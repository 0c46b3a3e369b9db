"""Fault injection: faults of agents, hosts and workers; ``outages`` has those of the store and the network.

A kind of fault is a function of the world and the fault's numbers, which its docstring explains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from elastic_core.incidents import IncidentKind
from simulator import (
    assumption_faults,
    forgeries,
    health_checks,
    idle_nodes,
    leaders,
    outages,
    programs,
    proofs,
    questions,
)
from simulator.plan import ISOLATED, Fault
from simulator.world import UID

if TYPE_CHECKING:
    from simulator.agent import SimAgent
    from simulator.workers import Worker
    from simulator.world import Host, World

STORE_WIDE = frozenset({"restart", "read-only", "wipe", "rollback", "masters", "split"}) | assumption_faults.STORE_WIDE
"""Kinds that affect all hosts."""


def inject(world: World, fault: Fault) -> None:
    """Inject a fault now."""
    host = world.hosts[fault.host % len(world.hosts)]
    if KINDS[fault.kind](world, host, fault) is not False:
        world.count(f"fault {fault.kind}")
        _mark_faulty(world, host, fault)
        world.note(host.name, f"FAULT: {fault}")


def _mark_faulty(world: World, host: Host, fault: Fault) -> None:
    """Record which host, or the store, may be unhealthy, and until when."""
    until = world.hub.now + fault.span
    if fault.kind in STORE_WIDE:
        world.faulty_until = max(world.faulty_until, until)
    else:
        host.faulty_until = max(host.faulty_until, until)


def heal(world: World) -> None:
    """End all faults that last."""
    world.note("world", "everything is well again")
    outages.start_store(world)
    outages.merge_masters(world)
    assumption_faults.heal(world)
    for host in world.hosts:
        host.lag = host.channel.slow = host.channel.lossy = 0.0
        host.channel.read_only = host.ports_taken = False
        host.channel.reads_blocked_until = 0.0
        host.isolated_until = 0.0
        host.severed.clear()
        host.faulty_until = max(host.faulty_until, world.hub.now)
        for agent in host.agents:
            agent.process.lag = 0.0
            if (worker := agent.group.worker) is not None:
                worker.unblock()
        outages.reconnect(world, host)
        host.resume()
    if (broken := world.broken_host) is not None:
        broken.channel.to_cut = outages.FOR_EVER if world.plan.lasting_fault in (1, 3) else 0.0
        broken.channel.from_cut = outages.FOR_EVER if world.plan.lasting_fault in (2, 3) else 0.0
        broken.faulty_until = outages.FOR_EVER
        world.hub.at(world.hub.now + outages.KEEPALIVE, outages.reset_broken, world, broken)
        world.count("a host stays cut off")
    _reconnect(world)
    if world.plan.lasting_fault == ISOLATED:
        lonely = world.hosts[-1]
        lonely.faulty_until = outages.FOR_EVER
        _isolate(world, lonely, Fault(world.hub.now, "isolate", lonely.number, outages.FOR_EVER))
        world.count("a host stays without peers")


def start_missing_agents(world: World) -> None:
    """Start agents on hosts without one, until there are enough for a round."""
    staying = [agent for agent in world.living() if not agent.leaving and agent.host is not world.broken_host]
    for host in world.hosts:
        if (
            host is not world.broken_host
            and len(staying) < world.plan.min_nodes
            and not host.living
            and not world.store.embedded
        ):
            staying.append(host.start(UID if world.plan.has_uid else None))


# Agents and hosts ----------------------------------------------------------------------------------------------------


def _start(world: World, host: Host, fault: Fault) -> bool:
    """Start an agent; with ``value`` 1 even beside another one, with ``value`` 2 of another job of the same name.

    With 3 it runs another program, with 4 the same one with other arguments.
    """
    if (
        host.suspended
        or (host.living and fault.value not in (1.0, *programs.STARTED))
        or (world.plan.embedded and world.store.down)
    ):
        return False
    uid = UID if world.plan.has_uid else None
    host.start("job-2" if fault.value == 2.0 else uid, command=programs.STARTED.get(fault.value))
    return True


def _crash(world: World, host: Host, fault: Fault) -> bool:
    """Kill an agent by SIGKILL; its warden notices after ``span`` and kills the workers."""
    agent = _newest(host)
    if agent is None:
        return False
    agent.kill()
    world.hub.at(world.hub.now + fault.span, agent.group.on_agent_exit)
    return True


def _power(world: World, host: Host, fault: Fault) -> bool:
    """Cut the host's power; it boots after ``span`` and starts no agent."""
    if not host.living and not host.slots:
        return False
    host.power_off()
    return True


def _freeze(world: World, host: Host, fault: Fault) -> bool:
    """Stop an agent (SIGSTOP) for ``span``; its warden and workers continue."""
    agent = _newest(host)
    if agent is None or agent.process.frozen:
        return False
    agent.process.frozen = True

    def wake() -> None:
        if not host.suspended:
            agent.process.resume(world.hub)

    world.hub.at(world.hub.now + fault.span, wake)
    return True


def _suspend(world: World, host: Host, fault: Fault) -> bool:
    """Suspend the whole machine for ``span``; with ``value`` 1 its monotonic clock stops too."""
    if host.suspended:
        return False
    host.suspended = True
    began = world.hub.now
    for agent in host.living:
        agent.process.frozen = True

    def resume() -> None:
        if host.suspended:
            if fault.value == 1.0:
                host.clock.lost += world.hub.now - began
                host.lost_time_at = world.hub.now
            host.resume()

    world.hub.at(began + fault.span, resume)
    return True


def _leave(world: World, host: Host, fault: Fault) -> bool:
    """Send an agent SIGTERM."""
    agent = _newest(host)
    if agent is None or agent.leaving:
        return False
    agent.signal()
    return True


def _busy(world: World, host: Host, fault: Fault) -> bool:
    """Delay each thread of the host's agents by up to ``value`` seconds, for ``span``."""
    host.lag = fault.value
    for agent in host.living:
        agent.process.lag = fault.value
    world.hub.at(world.hub.now + fault.span, _end_lag, host)
    return True


def _end_lag(host: Host) -> None:
    host.lag = 0.0
    for agent in host.living:
        agent.process.lag = 0.0


def _wall(world: World, host: Host, fault: Fault) -> bool:
    """Set the host's wall clock by ``value`` seconds; nothing may depend on it."""
    host.wall_offset += fault.value
    return True


# Workers -------------------------------------------------------------------------------------------------------------


def _fail(world: World, host: Host, fault: Fault) -> bool:
    """Make a worker exit with 1."""
    worker = _running_worker(host)
    if worker is None:
        return False
    worker.fail("boom")
    return True


def _hang(world: World, host: Host, fault: Fault) -> bool:
    """Make a worker hang; after ``span`` the hang is found, and it is killed."""
    worker = _running_worker(host)
    if worker is None or worker.training.broken:
        return False
    world.hub.at(world.hub.now + fault.span, worker.fail, "it hung")
    return True


def _stuck(world: World, host: Host, fault: Fault) -> bool:
    """Block a worker in the kernel, where no signal reaches it, for ``span``."""
    worker = _running_worker(host)
    if worker is None:
        return False
    worker.stuck = True
    world.hub.at(world.hub.now + fault.span, worker.unblock)
    return True


def _isolate(world: World, host: Host, fault: Fault) -> bool:
    """Partition the host from all other hosts, but not from the store, for ``span``."""
    if not host.isolated:
        host.isolated_at = world.hub.now
    host.isolated, host.isolated_until = True, max(host.isolated_until, world.hub.now + fault.span)
    world.hub.at(host.isolated_until, _reconnect, world)
    _notice(world, host)
    return True


def _sever(world: World, host: Host, fault: Fault) -> bool:
    """Partition the host from the ``value``-th after it, but not from others, for ``span``."""
    other = world.hosts[(host.number + int(fault.value)) % len(world.hosts)]
    if other is host:
        return False
    host.severed[other.number] = max(host.severed.get(other.number, 0.0), world.hub.now + fault.span)
    other.faulty_until = max(other.faulty_until, world.hub.now + fault.span)
    world.hub.at(world.hub.now + fault.span, _reconnect, world)
    _notice(world, host)
    return True


def _notice(world: World, host: Host) -> None:
    """Make workers that train fail soon, if they cannot reach a peer that they need."""
    worker = _running_worker(host)
    if worker is not None and worker.training.active and worker.training.partitioned:
        world.hub.at(world.hub.now + 2.0, worker.fail, "cannot reach its peers")


def _ports(world: World, host: Host, fault: Fault) -> bool:
    """Make each worker of this host find its port taken, for ``span``."""
    host.ports_taken = True
    world.hub.at(world.hub.now + fault.span, _end_ports, host)
    if (worker := _running_worker(host)) is not None:
        worker.fail("the port is taken", IncidentKind.PORT_TAKEN)
    return True


def _end_ports(host: Host) -> None:
    host.ports_taken = False


def _reconnect(world: World) -> None:
    """End the partitions whose time is over."""
    for host in world.hosts:
        host.isolated = host.isolated and host.isolated_until > world.hub.now
        host.severed = {number: until for number, until in host.severed.items() if until > world.hub.now}
    for training in world.trainings():
        training.try_start()


# Targets --------------------------------------------------------------------------------------------------------------


def _newest(host: Host) -> SimAgent | None:
    living = host.living
    return living[-1] if living and not host.suspended else None


def _running_worker(host: Host) -> Worker | None:
    for agent in host.agents:
        if not agent.over and agent.group.alive() and not host.suspended:
            return agent.group.worker
    return None


KINDS: dict[str, Callable[[World, Host, Fault], bool]] = {
    "start": _start,
    "crash": _crash,
    "power": _power,
    "freeze": _freeze,
    "suspend": _suspend,
    "leave": _leave,
    "busy": _busy,
    "wall": _wall,
    "fail": _fail,
    "hang": _hang,
    "stuck": _stuck,
    "isolate": _isolate,
    "sever": _sever,
    "ports": _ports,
    **outages.KINDS,
    **assumption_faults.KINDS,
    **health_checks.KINDS,
    **idle_nodes.KINDS,
    **leaders.KINDS,
    **proofs.KINDS,
    **questions.KINDS,
    **forgeries.KINDS,
}
