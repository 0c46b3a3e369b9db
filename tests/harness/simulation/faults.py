"""What each kind of fault does. A kind is a function of the world and the fault's numbers; the docstring says which."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from elastic_core.incidents import IncidentKind
from simulation.store import Replica
from simulation.world import UID

if TYPE_CHECKING:
    from simulation.agent import SimAgent
    from simulation.plan import Fault
    from simulation.workers import Gang
    from simulation.world import Host, World

STORE_WIDE = frozenset({"restart", "read-only", "wipe", "rollback", "masters"})
"""Kinds that everybody feels."""
FOR_EVER = 1e9
"""Seconds."""
KEEPALIVE = 5.0
"""Seconds after which a connection that hears nothing is found to be broken."""


def carry_out(world: World, fault: Fault) -> None:
    """Let a fault happen, now."""
    host = world.hosts[fault.host % len(world.hosts)]
    if KINDS[fault.kind](world, host, fault) is not False:
        world.count(f"fault {fault.kind}")
        _trouble(world, host, fault)
        world.note(host.name, f"FAULT: {fault}")


def _trouble(world: World, host: Host, fault: Fault) -> None:
    """Remember who cannot be expected to be healthy, and until when."""
    until = world.hub.now + fault.span
    if fault.kind in STORE_WIDE:
        world.troubled_until = max(world.troubled_until, until)
    else:
        host.troubled_until = max(host.troubled_until, until)


def heal(world: World) -> None:
    """End whatever lasts."""
    world.note("world", "everything is well again")
    store_up(world)
    _one_master(world)
    for host in world.hosts:
        host.lag = host.line.slow = host.line.lossy = 0.0
        host.line.read_only = host.isolated = host.ports_taken = False
        host.troubled_until = max(host.troubled_until, world.hub.now)
        for agent in host.agents:
            agent.process.lag = 0.0
            if (gang := agent.hands.gang) is not None:
                gang.stuck = False
        _uncut(world, host)
        host.resume()
    if (broken := world.broken_host) is not None:
        broken.line.to_cut = FOR_EVER if world.plan.broken in (1, 3) else 0.0
        broken.line.from_cut = FOR_EVER if world.plan.broken in (2, 3) else 0.0
        broken.troubled_until = FOR_EVER
        world.hub.at(world.hub.now + KEEPALIVE, _find_broken, world, broken)
        world.count("a host stays cut off")
    for training in world.trainings():
        training.meet()


def replenish(world: World) -> None:
    """Start agents where none run, until there are enough for a round."""
    staying = [agent for agent in world.living() if not agent.leaving and agent.host is not world.broken_host]
    for host in world.hosts:
        if (
            host is not world.broken_host
            and len(staying) < world.plan.min_nodes
            and not host.living
            and not world.store.embedded
        ):
            staying.append(host.start(UID if world.plan.uid else None))


# Agents and hosts ----------------------------------------------------------------------------------------------------


def _start(world: World, host: Host, fault: Fault) -> bool:
    """An agent is started; with ``value`` 1 even where one runs, with ``value`` 2 by another job of that name."""
    if host.suspended or (host.living and fault.value != 1.0) or (world.plan.embedded and world.store.down):
        return False
    uid = UID if world.plan.uid else None
    host.start("job-2" if fault.value == 2.0 else uid)
    return True


def _crash(world: World, host: Host, fault: Fault) -> bool:
    """An agent is killed by SIGKILL; its warden notices after ``span`` and kills the workers."""
    agent = _newest(host)
    if agent is None:
        return False
    kill(world, agent)
    world.hub.at(world.hub.now + fault.span, agent.hands.orphaned)
    return True


def kill(world: World, agent: SimAgent) -> None:
    """The process is gone; what it wrote last may still be on its way."""
    agent.process.dead = True
    world.note(agent.node_id, "is killed")
    agent.gone()


def _power(world: World, host: Host, fault: Fault) -> bool:
    """The host loses its power, and comes up after ``span`` without anything running on it."""
    if not host.living and not host.seats:
        return False
    for agent in host.living:
        kill(world, agent)
    for agent in host.agents:
        if (gang := agent.hands.gang) is not None:
            gang.stuck = False
            gang.kill()
            agent.hands.gang = None
    host.seats.clear()
    host.boots += 1
    host.held.clear()
    host.suspended = False
    return True


def _freeze(world: World, host: Host, fault: Fault) -> bool:
    """An agent stands still (SIGSTOP) for ``span``; its warden and workers do not."""
    agent = _newest(host)
    if agent is None or agent.process.frozen:
        return False
    agent.process.frozen = True

    def wake() -> None:
        if not host.suspended:
            agent.process.thaw(world.hub)

    world.hub.at(world.hub.now + fault.span, wake)
    return True


def _suspend(world: World, host: Host, fault: Fault) -> bool:
    """The whole machine stands still for ``span``; with ``value`` 1 its monotonic clock does, too."""
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
            host.resume()

    world.hub.at(began + fault.span, resume)
    return True


def _leave(world: World, host: Host, fault: Fault) -> bool:
    """An agent gets SIGTERM."""
    agent = _newest(host)
    if agent is None or agent.leaving:
        return False
    agent.signal()
    return True


def _busy(world: World, host: Host, fault: Fault) -> bool:
    """For ``span``, every thread of the host's agents runs up to ``value`` seconds late."""
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
    """Somebody sets the host's wall clock by ``value`` seconds; nothing may come of it."""
    host.wall_offset += fault.value
    return True


# Workers -------------------------------------------------------------------------------------------------------------


def _fail(world: World, host: Host, fault: Fault) -> bool:
    """A worker exits with 1."""
    gang = _gang(host)
    if gang is None:
        return False
    gang.fail("boom")
    return True


def _hang(world: World, host: Host, fault: Fault) -> bool:
    """A worker hangs; after ``span`` somebody notices, and it is killed."""
    gang = _gang(host)
    if gang is None or gang.training.broken:
        return False
    world.hub.at(world.hub.now + fault.span, gang.fail, "it hung")
    return True


def _stuck(world: World, host: Host, fault: Fault) -> bool:
    """A worker waits in the kernel, where no signal reaches it, for ``span``."""
    gang = _gang(host)
    if gang is None:
        return False
    gang.stuck = True
    world.hub.at(world.hub.now + fault.span, _unstick, gang)
    return True


def _unstick(gang: Gang) -> None:
    gang.stuck = False


def _isolate(world: World, host: Host, fault: Fault) -> bool:
    """For ``span`` the host's workers reach the store, but not those of other hosts."""
    host.isolated = True
    world.hub.at(world.hub.now + fault.span, _end_isolation, world, host)
    gang = _gang(host)
    if gang is not None and gang.training.whole and len(gang.training.gangs) > 1:
        world.hub.at(world.hub.now + 2.0, gang.fail, "cannot reach its peers")
    return True


def _ports(world: World, host: Host, fault: Fault) -> bool:
    """For ``span``, no worker of this host can listen: the port is always taken."""
    host.ports_taken = True
    world.hub.at(world.hub.now + fault.span, _end_ports, host)
    if (gang := _gang(host)) is not None:
        gang.fail("the port is taken", IncidentKind.PORT_TAKEN)
    return True


def _end_ports(host: Host) -> None:
    host.ports_taken = False


def _end_isolation(world: World, host: Host) -> None:
    host.isolated = False
    for training in world.trainings():
        training.meet()


# The network and the store -------------------------------------------------------------------------------------------


def _cut(world: World, host: Host, fault: Fault) -> bool:
    """Nothing gets to the store from this host (``value`` 1), back from it (2), or either (0), for ``span``."""
    until = world.hub.now + fault.span
    if fault.value in (0.0, 1.0):
        host.line.to_cut = max(host.line.to_cut, until)
    if fault.value in (0.0, 2.0):
        host.line.from_cut = max(host.line.from_cut, until)
    world.hub.at(world.hub.now + KEEPALIVE, _find_broken, world, host)
    return True


def _find_broken(world: World, host: Host) -> None:
    line = host.line
    if max(line.to_cut, line.from_cut) > world.hub.now:
        world.store.reset(lambda one: one.line is line and one.call is not None and one.call.name == "wait")


def _uncut(world: World, host: Host) -> None:
    """The line is whole again; what was held up by it comes when it would have come anyway."""
    host.line.to_cut = min(host.line.to_cut, world.hub.now)
    host.line.from_cut = min(host.line.from_cut, world.hub.now)


def _slow(world: World, host: Host, fault: Fault) -> bool:
    """Messages between this host and the store take up to ``value`` seconds longer, for ``span``."""
    host.line.slow = fault.value
    world.hub.at(world.hub.now + fault.span, _end, host.line, "slow")
    return True


def _lossy(world: World, host: Host, fault: Fault) -> bool:
    """A share of ``value`` of this host's calls to the store is broken off, for ``span``."""
    host.line.lossy = fault.value
    world.hub.at(world.hub.now + fault.span, _end, host.line, "lossy")
    return True


def _end(line: object, what: str) -> None:
    setattr(line, what, 0.0)


def _read_only(world: World, host: Host, fault: Fault) -> bool:
    """The store takes no writes from anybody, for ``span``: its disk is full."""
    for one in world.hosts:
        one.line.read_only = True
        world.hub.at(world.hub.now + fault.span, _end, one.line, "read_only")
    return True


def _restart(world: World, host: Host, fault: Fault) -> bool:
    """The store is down for ``span``, and comes back with its data."""
    if world.store.down or world.store.embedded:
        return False
    world.store.stop()
    world.hub.at(world.hub.now + fault.span, store_up, world)
    return True


def store_up(world: World) -> None:
    """The store answers again, unless it went with its host."""
    if not world.store.embedded:
        world.store.down = False


def remember(world: World, fault: Fault) -> None:
    """Keep what the store holds now: this is all that will be left of it when the fault comes."""
    world.remembered[fault] = world.store.master.copy()


def _wipe(world: World, host: Host, fault: Fault) -> bool:
    """The store is down for ``span``, and comes back empty."""
    return _come_back(world, fault, Replica(world.truth.appended))


def _rollback(world: World, host: Host, fault: Fault) -> bool:
    """The store is down for ``span``, and comes back as it was ``LAG`` before."""
    return _come_back(world, fault, world.remembered[fault])


def _come_back(world: World, fault: Fault, replica: Replica) -> bool:
    if world.store.down or world.store.embedded:
        return False
    world.store.stop()
    world.store.master.take_over(replica)
    world.hub.at(world.hub.now + fault.span, store_up, world)
    return True


def _masters(world: World, host: Host, fault: Fault) -> bool:
    """For ``span`` there are two masters: the old one, which the hosts of the bits of ``value`` still ask, and a new one.

    The new one lacks the last ``LAG`` of what the old one had taken; what that takes from now on is lost at the end.
    """
    old, promoted = world.store.master, world.remembered[fault]
    if world.store.down or world.store.embedded:
        return False
    world.store.master = promoted
    for one in world.hosts:
        if one.line.replica is old and not int(fault.value) >> one.number & 1:
            _ask(world, one, promoted)
    world.hub.at(world.hub.now + fault.span, _one_master, world)
    return True


def _one_master(world: World) -> None:
    for host in world.hosts:
        _ask(world, host, world.store.master)


def _ask(world: World, host: Host, replica: Replica) -> None:
    """The host's clients find out that another server is the one to ask."""
    if host.line.replica is not replica:
        world.store.reset(lambda one: one.line is host.line)
        host.line.replica = replica


def _newest(host: Host) -> SimAgent | None:
    living = host.living
    return living[-1] if living and not host.suspended else None


def _gang(host: Host) -> Gang | None:
    for agent in host.agents:
        if not agent.over and agent.hands.alive() and not host.suspended:
            return agent.hands.gang
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
    "ports": _ports,
    "cut": _cut,
    "slow": _slow,
    "lossy": _lossy,
    "read-only": _read_only,
    "restart": _restart,
    "wipe": _wipe,
    "rollback": _rollback,
    "masters": _masters,
}
FORGETTING = frozenset({"wipe", "rollback", "masters"})
"""Kinds after which the store does not hold all that it has taken."""
LAG = 0.3
"""Seconds that a replica or a file is behind."""
