"""Faults that break an assumption of the rules S1 to S8; each docstring explains the numbers of the fault.

Only the profiles of ``assumptions`` have these faults, and only what is listed there holds under them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from elastic_core.errors import RendezvousStateError
from simulator import outages
from simulator.channel import Payload
from simulator.replica import AppendFault, Replica
from simulator.world import UID

if TYPE_CHECKING:
    from simulator.plan import Fault
    from simulator.world import Host, World

CAME_SINCE = 8.0
"""Seconds after which the nodes of a run that is cut off count as lost, and another run may begin."""


def _late_writes(world: World, host: Host, fault: Fault) -> bool:
    """S2. Give up a share of ``value`` of this host's calls for ``span``, and carry them out up to 3 fences later."""
    host.channel.lossy, host.channel.late_writes = fault.value, 3 * world.plan.fence_after
    world.hub.at(world.hub.now + fault.span, _end_late_writes, host)
    return True


def _end_late_writes(host: Host) -> None:
    host.channel.lossy = host.channel.late_writes = 0.0


def _break_appends(world: World, host: Host, fault: Fault) -> bool:
    """S2. For ``span``, acknowledge entries without keeping them (0), or take two at one index (1)."""
    master = world.store.master
    master.append_fault = AppendFault.TWOFOLD if fault.value else AppendFault.UNKEPT
    master.overwritten = lambda: _overwritten(world)
    world.hub.at(world.hub.now + fault.span, restore_appends, world)
    return True


def _overwritten(world: World) -> None:
    """Record that some nodes have read an entry that is no longer the ledger's."""
    world.count("S2 an entry takes the place of another")
    world.lost_data = True
    for host in world.hosts:
        host.channel.contact_since = None


def restore_appends(world: World) -> None:
    """Make appends conditional again, as the contract of a backend demands."""
    world.store.master.append_fault = AppendFault.NO


def _same_ids(world: World, host: Host, fault: Fault) -> bool:
    """S2. For ``span``, give agents that ask for an id at one head of the ledger the same id."""
    world.same_ids = True
    world.hub.at(world.hub.now + fault.span, setattr, world, "same_ids", False)
    return True


def _copy(world: World, host: Host, fault: Fault) -> bool:
    """S3, S4. Take the store down for ``span``, and restore its state of ``value`` seconds before."""
    return outages.restart_with(world, fault, world.snapshots[fault])


def _lose_entry(world: World, host: Host, fault: Fault) -> bool:
    """S3. Lose one entry before the newest, by ``value``, and keep all later ones."""
    return _replace(world, fault, None)


def _damage_entry(world: World, host: Host, fault: Fault) -> bool:
    """S3. Make one entry of the store, by ``value``, unreadable."""
    return _replace(world, fault, Payload.of(RendezvousStateError("The entry is damaged.")))


def _replace(world: World, fault: Fault, data: Payload | None) -> bool:
    master = world.store.master
    places = master.head - (data is None)
    if places < 1:
        return False
    place = int(fault.value) % places
    master.replace(place, data)
    return True


def _freeze_copy(world: World, host: Host, fault: Fault) -> bool:
    """S3, S6, S7. For ``span``, answer this host's reads from a copy that receives no updates.

    Writes are taken (``value`` 0) or refused (1), as by a replica that has lost its master.
    """
    if not _answer_from_copy(host, host.channel.replica.copy()):
        return False
    host.channel.read_only = fault.value == 1.0
    world.hub.at(world.hub.now + fault.span, catch_up, world, host)
    return True


def _stale_since(world: World, host: Host, fault: Fault) -> bool:
    """S3. For ``span``, answer this host's reads from the state of ``value`` seconds before; take its writes."""
    if not _answer_from_copy(host, world.snapshots[fault]):
        return False
    world.hub.at(world.hub.now + fault.span, catch_up, world, host)
    return True


def _answer_from_copy(host: Host, copy: Replica) -> bool:
    """Let a copy answer reads and waits."""
    channel = host.channel
    if channel.stale_copy is not None:
        return False
    channel.stale_copy = copy
    moved = [call for call in channel.replica.waiting if call.channel is channel]
    channel.replica.waiting = [call for call in channel.replica.waiting if call.channel is not channel]
    for call in moved:
        call.store.execute(call)
    return True


def catch_up(world: World, host: Host) -> None:
    """Let the server answer reads again."""
    behind, host.channel.stale_copy, host.channel.read_only = host.channel.stale_copy, None, False
    for call in behind.waiting if behind is not None else ():
        world.hub.at(world.hub.now, world.store.execute, call)


def _stall(world: World, host: Host, fault: Fault) -> bool:
    """S4. Suspend the wardens of this host for ``span``, but not its agents and workers."""
    for agent in host.agents:
        agent.group.stalled_until = max(agent.group.stalled_until, world.hub.now + fault.span)
    return True


def _pause(world: World, host: Host, fault: Fault) -> bool:
    """S4. Suspend the machine with its clock for ``span``, and cut it off until two fences after."""
    if host.suspended:
        return False
    host.suspended, began = True, world.hub.now
    for agent in host.living:
        agent.process.frozen = True

    def resume() -> None:
        if host.suspended:
            host.clock.lost += world.hub.now - began
            host.lost_time_at = world.hub.now
            host.resume()

    world.hub.at(began + fault.span, resume)
    host.channel.to_cut = max(host.channel.to_cut, began + fault.span + 2 * world.plan.fence_after)
    host.faulty_until = max(host.faulty_until, host.channel.to_cut)
    world.hub.at(began + outages.KEEPALIVE, outages.reset_broken, world, host)
    return True


def _isolate_run(world: World, host: Host, fault: Fault) -> bool:
    """S5, S6. Let a host that is not in the round leave, and cut all others off for ``span``.

    The job is then started on that host under another uid.
    """
    spare = [one for one in world.hosts if not any(agent.group.alive() for agent in one.living)]
    if world.store.down or not spare or len(world.checker.active_trainings) != 1:
        return False
    host = spare[0]
    for agent in host.living:
        agent.signal()
    for other in world.hosts:
        if other is not host:
            other.channel.to_cut = max(other.channel.to_cut, world.hub.now + fault.span)
            other.faulty_until = max(other.faulty_until, other.channel.to_cut)
            world.hub.at(world.hub.now + outages.KEEPALIVE, outages.reset_broken, world, other)
    world.hub.at(world.hub.now + CAME_SINCE, _start_other_run, host)
    return True


def _start_other_run(host: Host) -> None:
    if not host.living and not host.suspended:
        host.start("job-2")


def _replay(world: World, host: Host, fault: Fault) -> bool:
    """S7. Write an older value over a row of this host, as revision ``value`` plus the current one."""
    master = world.store.master
    for agent in reversed(host.living):
        said, row = world.store.written_rows.get(agent.node_id, []), master.rows.get(agent.node_id)
        if row is not None and len(said) > 1:
            older = said[world.hub.random.randrange(len(said))]
            master.amend(agent.node_id, row.revision + int(fault.value), older)
            return True
    return False


def _erase(world: World, host: Host, fault: Fault) -> bool:
    """S7. Remove the rows of this host."""
    rows = [agent.node_id for agent in host.living if agent.node_id in world.store.master.rows]
    for node_id in rows:
        world.store.master.remove(node_id)
    return bool(rows)


def _rewind(world: World, host: Host, fault: Fault) -> bool:
    """S8. Cut the machine's power, and boot it after ``span`` with the same host id and an earlier clock."""
    if not host.living and not host.slots:
        return False
    boots = host.boots
    host.power_off()
    host.boots = boots
    host.clock.offset -= host.clock.now() - 1.0
    world.hub.at(world.hub.now + fault.span, _boot, host)
    return True


def _boot(host: Host) -> None:
    if not host.living:
        host.start(UID if host.world.plan.has_uid else None)


def heal(world: World) -> None:
    """End all faults that last."""
    restore_appends(world)
    world.same_ids = False
    for host in world.hosts:
        host.channel.late_writes = 0.0
        catch_up(world, host)
        for agent in host.agents:
            agent.group.stalled_until = 0.0


KINDS: dict[str, Callable[[World, Host, Fault], bool]] = {
    "ghosts": _late_writes,
    "loose": _break_appends,
    "same-ids": _same_ids,
    "copy": _copy,
    "hole": _lose_entry,
    "rot": _damage_entry,
    "stale": _freeze_copy,
    "older": _stale_since,
    "stall": _stall,
    "pause": _pause,
    "maroon": _isolate_run,
    "replay": _replay,
    "erase": _erase,
    "rewind": _rewind,
}
STORE_WIDE = frozenset({"loose", "same-ids", "copy", "hole", "rot", "maroon"})
"""Kinds that affect all hosts."""


def age(fault: Fault) -> float:
    """Return the age, in seconds, of the copy that the store is restored from."""
    return fault.value if fault.kind in ("copy", "older") else outages.LAG
