"""Faults of the store, and of the network between it and the hosts; each docstring explains the fault's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulator.replica import Replica

if TYPE_CHECKING:
    from simulator.plan import Fault
    from simulator.store import Connection
    from simulator.world import Host, World

FOR_EVER = 1e9
"""Seconds: until the end of any plan."""
KEEPALIVE = 5.0
"""Seconds after which a silent connection is found to be broken."""


def _cut(world: World, host: Host, fault: Fault) -> bool:
    """Cut this host off from the store for ``span``: requests (``value`` 1), replies (2) or both (0)."""
    cut_off(world, host, fault.span, to=fault.value in (0.0, 1.0), back=fault.value in (0.0, 2.0))
    return True


def cut_off(world: World, host: Host, seconds: float, *, to: bool = True, back: bool = True) -> None:
    """Drop requests of this host to the store, its replies, or both, for so many seconds."""
    until = world.hub.now + seconds
    host.channel.to_cut = max(host.channel.to_cut, until) if to else host.channel.to_cut
    host.channel.from_cut = max(host.channel.from_cut, until) if back else host.channel.from_cut
    world.hub.at(world.hub.now + KEEPALIVE, reset_broken, world, host)


def reset_broken(world: World, host: Host) -> None:
    channel = host.channel
    if max(channel.to_cut, channel.from_cut) > world.hub.now:
        world.store.reset(lambda one: one.channel is channel and one.call is not None and one.call.name == "wait")


def reconnect(world: World, host: Host) -> None:
    """End the cut; messages that it delayed arrive at their own time."""
    host.channel.to_cut = min(host.channel.to_cut, world.hub.now)
    host.channel.from_cut = min(host.channel.from_cut, world.hub.now)


def _slow(world: World, host: Host, fault: Fault) -> bool:
    """Delay messages between this host and the store by up to ``value`` seconds, for ``span``."""
    host.channel.slow = fault.value
    world.hub.at(world.hub.now + fault.span, _end, host.channel, "slow")
    return True


def _lossy(world: World, host: Host, fault: Fault) -> bool:
    """Fail a share of ``value`` of this host's calls to the store, for ``span``."""
    host.channel.lossy = fault.value
    world.hub.at(world.hub.now + fault.span, _end, host.channel, "lossy")
    return True


def _end(channel: object, what: str) -> None:
    setattr(channel, what, 0.0)


def _read_only(world: World, host: Host, fault: Fault) -> bool:
    """Refuse all writes to the store for ``span``, as with a full disk."""
    for one in world.hosts:
        one.channel.read_only = True
        world.hub.at(world.hub.now + fault.span, _end, one.channel, "read_only")
    return True


def _restart(world: World, host: Host, fault: Fault) -> bool:
    """Take the store down for ``span``; it comes back with its data."""
    if world.store.down or world.store.embedded:
        return False
    world.store.stop()
    world.hub.at(world.hub.now + fault.span, start_store, world)
    return True


def start_store(world: World) -> None:
    """Start the store again, unless it ended with its host."""
    if not world.store.embedded:
        world.store.down = False


def take_snapshot(world: World, fault: Fault) -> None:
    """Keep a copy of the store, which a later fault restores."""
    world.snapshots[fault] = world.store.master.copy()


def _wipe(world: World, host: Host, fault: Fault) -> bool:
    """Take the store down for ``span``, and bring it back empty."""
    world.checker.departures.on_wipe()
    return restart_with(world, fault, Replica(world.checker.on_append, world.checker.on_shrink))


def _rollback(world: World, host: Host, fault: Fault) -> bool:
    """Take the store down for ``span``, and bring it back as it was ``LAG`` before."""
    return restart_with(world, fault, world.snapshots[fault])


def restart_with(world: World, fault: Fault, replica: Replica) -> bool:
    """Take the store down for the fault's span, and bring it back with the data of a replica."""
    if world.store.down or world.store.embedded:
        return False
    world.store.stop()
    world.store.master.take_over(replica)
    world.lost_data = True
    for one in world.hosts:
        one.channel.reset()
    world.hub.at(world.hub.now + fault.span, start_store, world)
    return True


def _fail_over(world: World, host: Host, fault: Fault) -> bool:
    """Run two masters for ``span``: the old one for the hosts by the bits of ``value``, a new one for all others.

    The new one lacks the last ``LAG`` of the old one's data; the old one's writes from now on are lost at the end.
    """
    old, promoted = world.store.master, world.snapshots[fault]
    if world.store.down or world.store.embedded:
        return False
    world.store.master, world.lost_data = promoted, True
    for one in world.hosts:
        if one.channel.replica is old and not int(fault.value) >> one.number & 1:
            _switch_server(world, one, promoted)
    world.hub.at(world.hub.now + fault.span, merge_masters, world)
    return True


def _split(world: World, host: Host, fault: Fault) -> bool:
    """Split the store into two masters; the old one then refuses writes if the plan is guarded."""
    if world.split_at is not None or not _fail_over(world, host, fault):
        return False
    world.split_at = world.hub.now
    return True


def _refuse(world: World, host: Host, fault: Fault) -> bool:
    """Refuse writes from this host alone for ``span``; answer its reads."""
    host.channel.read_only = True
    world.hub.at(world.hub.now + fault.span, _end, host.channel, "read_only")
    return True


def _hang_up(world: World, host: Host, fault: Fault) -> bool:
    """Drop all requests of one of the host's connections, by ``value``, for ``span``."""
    own = [one for one in world.store.connections if one.channel is host.channel]
    if not own:
        return False
    connection = own[int(fault.value) % len(own)]
    connection.hung_until = world.hub.now + fault.span
    world.hub.at(world.hub.now + KEEPALIVE, _find_hung, world, connection)
    return True


def _find_hung(world: World, connection: Connection) -> None:
    if connection.hung_until > world.hub.now:
        world.store.reset(lambda one: one is connection and one.call is not None and one.call.name == "wait")


def merge_masters(world: World) -> None:
    world.split_at = None
    for host in world.hosts:
        _switch_server(world, host, world.store.master)


def _switch_server(world: World, host: Host, replica: Replica) -> None:
    """Switch the host's clients to another server."""
    if host.channel.replica is not replica:
        world.store.reset(lambda one: one.channel is host.channel)
        host.channel.replica = replica
        host.channel.reset()


KINDS: dict[str, Callable[[World, Host, Fault], bool]] = {
    "cut": _cut,
    "slow": _slow,
    "lossy": _lossy,
    "read-only": _read_only,
    "restart": _restart,
    "wipe": _wipe,
    "rollback": _rollback,
    "masters": _fail_over,
    "split": _split,
    "refuse": _refuse,
    "hang-up": _hang_up,
}
DATA_LOSS = frozenset({"wipe", "rollback", "masters", "split", "copy", "older"})
"""Kinds that restore an earlier state of the store."""
LAG = 0.3
"""Seconds by which a replica or a file is behind."""
