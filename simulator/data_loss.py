"""Checks of a store that loses data (rule S3), and of the time for which a node cannot know of the loss.

A store that loses entries, or that is two masters for a while, can lead to two histories of a run. A node can know that
only once it has had contact with the right server. This is the documented window of asynchronous replication: a round
*may be unaware* of its successor until a member has had undisturbed contact for a few seconds; after that, all rules
hold as usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.protocol.entries import Closed, Entry, Resume

if TYPE_CHECKING:
    from simulator.agent import SimAgent
    from simulator.replica import Replica
    from simulator.workers import Training
    from simulator.world import Host, World

CONTACT_SECONDS = 7.0
"""Seconds of undisturbed contact with a store after which a node must have compared histories: a heartbeat, and the
timeout of a client."""
VISIBLE_SECONDS = 5.0
"""Seconds in a run and in undisturbed contact after which a node's heartbeat has moved between two reads of the roster:
an interval until the first read, one until the next heartbeat, and half of one for delays."""
POLL_SECONDS = 1.0
"""Seconds between two checks of two rounds that train."""
PRESUMED_ALIVE_SECONDS = 15.0
"""Seconds for which a node that has ended may count as alive."""


def has_contact(world: World, host: Host, seconds: float = CONTACT_SECONDS) -> bool:
    """Return True if a host has had undisturbed contact with its server for so long."""
    channel, now = host.channel, world.hub.now
    troubled = max(host.faulty_until, channel.to_cut, channel.from_cut, channel.reads_blocked_until)
    if (
        channel.contact_since is None
        or channel.slow
        or channel.lossy
        or channel.read_only
        or host.lag
        or host.suspended
    ):
        return False
    return now - max(channel.contact_since, troubled) >= seconds and not world.store.down


def may_be_unaware(world: World, training: Training) -> bool:
    """Return True if a round may train on although its run has another round, which no member can know yet."""
    return world.lost_data and not overdue_member(world, training)


def was_served(world: World, replica: Replica, offer: str) -> bool:
    """Return True if workers met at an offer, and the server must know of it."""
    workers = [
        g for training in world.trainings() if training.round.offer.id == offer for g in training.workers.values()
    ]
    hosts = [worker.host for worker in workers]
    return any(not world.lost_data or (host.channel.replica is replica and has_contact(world, host)) for host in hosts)


def overdue_member(world: World, training: Training) -> str:
    """Return a member of a training that must know that its round is not the newest; '' for none."""
    for node_id, worker in training.workers.items():
        agent, host = world.agent(node_id), worker.host
        if agent is None or agent.over or agent.process.frozen or not has_contact(world, host):
            continue
        newest = world.checker.histories.newest_round(host.channel.replica, training.run)
        if newest is None or newest.offer.id != training.round.offer.id:
            return node_id
    return ""


def check_overlap_known(world: World, one: Training, other: Training) -> None:
    """S4, I12: two rounds train at once only while no member of either can know of the other."""
    if not one.active or not other.active:
        return
    fence = world.plan.fence_after
    if world.plan.stale_reads and world.split_at is not None and world.hub.now - world.split_at > fence:
        since = f"{world.hub.now - world.split_at:.1f} s after a master was replaced, of {fence:g} s"
        world.checker.fail("S4", f"rounds {one.round.number} and {other.round.number} train at once {since}")
        return
    for training in (one, other):
        if node_id := overdue_member(world, training):
            both = f"rounds {one.round.number} of {one.run} and {other.round.number} of {other.run}"
            world.checker.fail("S4", f"{both} train at once, and {node_id} must know of it")
            return
    world.count("S3 two rounds train, and no node can know of it yet")
    world.hub.at(world.hub.now + POLL_SECONDS, check_overlap_known, world, one, other)


def check_resume(world: World, replica: Replica, before: Entry | None, entry: Entry, body: Resume) -> None:
    """S3: a RESUME continues a round that was written, over no other run that goes on, unless that came before."""
    checker = world.checker
    if not world.lost_data:
        checker.fail("S3", f"{entry.author} resumes a run, and the store has lost nothing")
    if not checker.histories.was_written(body.round):
        checker.fail("S3", f"{entry.author} resumes round {body.round.number}, which no node has written")
    if entry.epoch != body.epoch + 1:
        checker.fail("S3", f"epoch {entry.epoch} follows epoch {body.epoch}")
    if before is None:
        world.count("S3 RESUME over an empty store")
    elif before.run == entry.run:
        world.count("S3 RESUME over what was put back")
    elif before.run in body.opened.former:
        world.count("S3 RESUME over a run that came before")
        if not checker.histories.came_before(before.run, entry.run):
            checker.fail("S3", f"{entry.author} resumes its run over run {before.run}, which did not come before it")
    else:
        world.count("S3 RESUME over another run")
        outranked, author = checker.histories.newest_round(replica, before.run, skip=1), world.agent(entry.author)
        if author is None or not has_contact(world, author.host, 0.0):
            return  # its RESUME may come long after its last look at the roster
        alive = ", ".join(visible_nodes(world, replica, before.run))
        if outranked is not None and not isinstance(before.body, Closed) and alive:
            over = f"run {before.run}, which has had a round, and of which {alive} is alive"
            checker.fail("S3", f"{entry.author} resumes its run over {over}")


def visible_nodes(world: World, replica: Replica, run: str) -> list[str]:
    """Return the nodes of a run that are alive to any node that has watched the roster of a server for ``lost_after``.

    A node that joined just before the end of that, or had no contact, may have sent no heartbeat between two reads.
    """
    return [
        agent.node_id
        for agent in world.living()
        if agent.run == run
        and agent.node_id in replica.rows
        and world.hub.now - agent.joined_at >= VISIBLE_SECONDS
        and not (agent.leaving or agent.process.frozen)
        and agent.host.channel.replica is replica
        and has_contact(world, agent.host, VISIBLE_SECONDS)
    ]


def living_nodes(world: World, run: str, within: float = 0.0) -> list[str]:
    """Return the nodes of a run that run, or have run within so many seconds."""
    since = world.hub.now - within
    return [one.node_id for one in world.agents() if one.run == run and (not one.over or one.over_at >= since)]


def check_replaced_run(world: World, agent: SimAgent) -> None:
    """S3: a run gives way only to one that has had a round and has a living node."""
    replica, state = agent.host.channel.replica, agent.state
    if state is None or state.ledger.round is None or not replica.entries:
        return
    entries = [world.checker.histories.written[entry_id] for entry_id, _ in replica.entries]
    newest = entries[-1]
    if any(entry.run == agent.run and isinstance(entry.body, Closed) for entry in entries):
        return
    if newest.run != agent.run and not world.checker.histories.has_round(newest.run):
        world.checker.fail("S3", f"{agent.node_id} gives its run up for {newest.run}, which has had no round")
    if newest.run != agent.run and not living_nodes(world, newest.run, PRESUMED_ALIVE_SECONDS):
        world.checker.fail("S3", f"{agent.node_id} gives its run up for {newest.run}, of which no node is alive")


def check_first(world: World, replica: Replica, entry: Entry) -> None:
    """S3: a newcomer opens no run over one whose nodes have contact with this store.

    An OPEN on a master that was replaced replaces no run: it will be lost, and its author gives way.
    """
    if not world.lost_data or replica is not world.store.master:
        return
    for agent in world.living():
        if agent.run in ("", entry.run) or agent.state is None or agent.leaving or agent.process.frozen:
            continue
        ledger = agent.state.ledger
        mine = ledger.round is not None and ledger.closed is None and not agent.state.run_replaced
        if mine and agent.host.channel.replica is replica and has_contact(world, agent.host):
            world.checker.fail("S3", f"{entry.author} opens a run over that of {agent.node_id}")
