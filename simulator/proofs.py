"""Nodes that are wrongly taken for gone (rule S8): two hosts with one host id, and people or plugins that vouch.

Where its assumption is broken, a proof may be wrong: only for a node without contact to the store, and only until the
leader knows it. The leader's knowledge is derived from what it has read.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastic_core.errors import RendezvousConnectionError
from elastic_core.incidents import Incident
from elastic_core.protocol.entries import Closed, Entry, Leader, Open, Resume
from elastic_core.protocol.roster import NodeInfo, NodeRow, find_gone_nodes
from elastic_core.rendezvous.backend import RosterRow
from simulator import data_loss, leaders
from simulator.channel import Payload
from simulator.engine import Process
from simulator.store import Connection
from simulator.workers import State

if TYPE_CHECKING:
    from simulator.agent import SimAgent
    from simulator.plan import Fault
    from simulator.replica import Replica
    from simulator.workers import Training
    from simulator.world import Host, World

PROVED = "its last process is gone"
"""The text of a loss whose proof is a slot."""
SILENCE = 2.7
"""Seconds between two heartbeats after which a node may seem gone: one and a half intervals, by a clock that drifts."""
TOUCH = 5.0
"""Seconds after the second one for which a leader may still act on that."""
FENCED = 0.85
"""The share of the fence within which a warden has stopped workers without contact; clocks drift."""
VOUCH_SECONDS = 20.0
"""Seconds within which a leader has heard a voucher: a suspicion, an answer, two reads, a new connection."""
CONTRADICTIONS = 2
"""Heartbeats of a node proved gone after which no proof of its host is believed."""


def _outlive(world: World, host: Host, fault: Fault) -> bool:
    """Kill an agent and its warden at once; processes of its workers train on for ``span``."""
    agent = next((one for one in host.living if one.group.alive() and not host.suspended), None)
    if agent is None:
        return False
    agent.kill()
    world.hub.at(world.hub.now + fault.span, agent.group.on_agent_exit)
    return True


def _release(world: World, host: Host, fault: Fault) -> bool:
    """Vouch from another host that this one is gone; with ``value`` 1 even if it is not."""
    rows = world.store.master.rows
    agents = [agent for agent in host.agents if agent.node_id in rows]
    if not agents or (fault.value != 1.0 and any(agent.gone_at is None for agent in agents)):
        return False
    world.checker.proofs.on_release(agents)
    other = world.hosts[(host.number + 1) % len(world.hosts)]
    name = f"release-{world.new_id()}"
    process = Process(name, other.clock, other)
    info = NodeInfo(
        node_id=name,
        host=other.name,
        host_id=name,
        slot=0,
        local_world_size=0,
        role="",
        versions=agents[0].info.versions,
    )
    row = Payload.of(NodeRow(info=info, release=tuple(agent.node_id for agent in agents)))

    def vouch() -> None:
        with contextlib.suppress(RendezvousConnectionError):
            Connection(world.store, other.channel, process, hosting=False).enter(name, row)

    world.hub.start(process, vouch)
    return True


def _block_reads(world: World, host: Host, fault: Fault) -> bool:
    """Freeze all members' agents for ``value``; until ``span`` ends, no entry that they read arrives.

    Their heartbeats continue after ``value``: they are not gone, and cannot know that their round is over.
    """
    hosts = leaders.hosts_of_members(world)
    for one in hosts:
        one.channel.reads_blocked_until = world.hub.now + fault.span
        for agent in one.living:
            agent.process.frozen = True
            world.hub.at(world.hub.now + fault.value, agent.process.resume, world.hub)
    return bool(hosts)


def _lose_members(world: World, host: Host, fault: Fault) -> bool:
    """Cut the power of the newest round's members' hosts for good."""
    hosts = leaders.hosts_of_members(world)
    for one in hosts:
        one.power_off()
    return bool(hosts)


@dataclass
class _RosterView:
    """A leader's reads of the roster since it leads."""

    shown: set[str] = field(default_factory=set)
    """Nodes that rows have shown to be gone."""
    highest: dict[tuple[object, str], int] = field(default_factory=dict)
    grown: Counter[tuple[object, str]] = field(default_factory=Counter)
    """Number of times that the heartbeat of each of these has grown since, in what one connection has read: others than
    that of the leader's decisions may read the roster for something else."""


@dataclass
class _Heartbeats:
    """The heartbeats of a node, as they arrived."""

    last: float = -1e9
    still_until: float = -1e9
    """Arrival of a heartbeat after a long silence."""


@dataclass
class Proofs:
    """Proofs that nodes are gone, and their contradictions."""

    world: World
    overlaps: list[float] = field(default_factory=list)
    """Seconds for which rounds trained on that were taken for over."""
    _readers: dict[str, _RosterView] = field(default_factory=dict)
    _vouched: set[str] = field(default_factory=set)
    """Nodes with a wrong voucher."""
    _released: set[str] = field(default_factory=set)
    """Nodes with a voucher by a row under way."""
    _overlapping: dict[int, float] = field(default_factory=dict)

    _heartbeats: dict[str, _Heartbeats] = field(default_factory=dict)

    @property
    def deceptive(self) -> bool:
        """Return True if a proof can be wrong in this plan."""
        return self.world.plan.twin_clock_offset is not None or self.world.plan.vouching in ("wrong", "people")

    def on_heartbeat(self, node_id: str) -> None:
        """Record that a heartbeat has arrived."""
        now, heartbeats = self.world.hub.now, self._heartbeats.setdefault(node_id, _Heartbeats())
        if now - heartbeats.last >= SILENCE:
            heartbeats.still_until = now
        heartbeats.last = now

    def on_append(self, entry: Entry) -> None:
        """Record that a leader begins, which has read nothing yet."""
        if isinstance(entry.body, Open | Leader | Resume):
            self._readers.pop(entry.leader, None)

    def on_roster_read(self, reader: str, connection: object, rows: Sequence[RosterRow]) -> None:
        """Record that an agent has read the whole roster."""
        if not self.deceptive:
            return
        known = self._readers.setdefault(reader, _RosterView())
        for row in rows:
            seen = (connection, row.node_id)
            if row.heartbeat > known.highest.setdefault(seen, row.heartbeat):
                known.highest[seen] = row.heartbeat
                known.grown[seen] += row.node_id in known.shown
        values: list[Any] = [row.value for row in rows]
        told = [value.value for value in values]
        released = {node_id for row in told for node_id in row.release}
        self._vouched |= released
        known.shown |= find_gone_nodes(told) | released

    def vouches(self, reader: str, node_id: str) -> bool:
        """Return True if a plugin tells a leader that a node is gone for good."""
        agent = self.world.agent(node_id)
        if agent is None:
            return False
        channel = agent.host.channel
        cut_off = max(channel.to_cut, channel.from_cut) > self.world.hub.now
        if agent.gone_at is None and not (cut_off and self.world.plan.vouching == "wrong"):
            return False
        self.world.count("S4 a voucher for a node" + (" that lives" if agent.gone_at is None else ""))
        self._vouched.add(node_id)
        self._readers.setdefault(reader, _RosterView()).shown.add(node_id)
        return True

    def expect_end(self, replica: Replica, halt: Entry) -> None:
        """P1: a voucher for all members shortens the wait for the fence."""
        current = self.world.checker.histories.newest_round(replica, halt.run)
        ids = [member.node_id for member in current.members] if current is not None else []
        gone = all((agent := self.world.agent(node_id)) is not None and agent.gone_at is not None for node_id in ids)
        if gone and (self.world.plan.vouching == "right" or self._released >= {*ids}):
            hub = self.world.hub
            hub.at(hub.now + VOUCH_SECONDS, leaders.check_end, self.world, replica, halt, "despite a voucher, after")

    def on_release(self, agents: Sequence[SimAgent]) -> None:
        """Record vouchers for these nodes, also while a HALT is in effect."""
        self._released |= {agent.node_id for agent in agents}
        replica, entry = self.world.store.master, leaders.newest(self.world)
        if entry is not None and entry.anchors.halt and not isinstance(entry.body, Closed):
            self.expect_end(replica, self.world.checker.histories.written[replica.entries[entry.anchors.halt - 1][0]])

    def check_lost(self, entry: Entry, lost: Incident) -> None:
        """S8: a node taken for gone is gone, or has no contact and the leader cannot know that the proof is wrong."""
        agent = self.world.agent(lost.node_id)
        if agent is None or PROVED not in lost.message or agent.gone_at is not None:
            return
        if self._may_be_misled(entry, agent):
            self.world.count("S8 a node that was out of touch is taken for gone, and lives")
        else:
            self.world.checker.fail("S8", f"{lost.node_id} is taken for gone, and lives: {lost.message}")

    def check_overlap(self, entry: Entry, training: Training) -> bool:
        """S4: return True if a round may be sealed beside one that trains.

        A member of that seems gone, or the fence is over and had no warden left to stop these processes.
        """
        if self.may_overlap(training):
            return True
        agents = [self.world.agent(node_id) for node_id in training.workers]
        waited = self.world.checker.histories.halted_for(entry) >= self.world.plan.fence_after
        if waited and self._is_unfenced(training):
            self.world.count("S4 a process without a warden trains on when the fence is over")
        elif not any(agent is not None and self._may_be_misled(entry, agent) for agent in agents):
            return False
        now = self.world.hub.now
        self._overlapping[id(training)] = now
        self._check_over(training, now + FENCED * self.world.plan.fence_after)
        return True

    def on_training_end(self, training: Training) -> None:
        """Record that a round trains no more."""
        if (since := self._overlapping.get(id(training))) is not None:
            self.overlaps.append(self.world.hub.now - since)

    def may_overlap(self, training: Training) -> bool:
        """Return True if a round may train beside another one."""
        return id(training) in self._overlapping

    def _check_over(self, training: Training, until: float) -> None:
        """S4: such a round ends once its nodes have contact, and at the fence."""
        if not training.active:
            return
        number, hub = training.round.number, self.world.hub
        if node_id := data_loss.overdue_member(self.world, training):
            self.world.checker.fail("S4", f"round {number} is taken for over and trains, and {node_id} must know")
        elif hub.now > until and not self._is_unfenced(training):
            self.world.checker.fail("S4", f"round {number} is taken for over and trains beyond the fence")
        else:
            self.world.count("S8 a round trains on that is taken for over")
            hub.at(hub.now + data_loss.POLL_SECONDS, self._check_over, training, until)

    def _is_unfenced(self, training: Training) -> bool:
        """Return True if all processes that train have outlived agent and warden, so that no fence stops them."""
        running = [node_id for node_id, worker in training.workers.items() if worker.state is State.RUNNING]
        return all((agent := self.world.agent(node_id)) is not None and agent.over for node_id in running)

    def _may_be_misled(self, entry: Entry, agent: SimAgent) -> bool:
        """Return True if the author of an entry may take a node for gone that is not."""
        host = agent.host
        if not (host.shares_host_id or agent.node_id in self._vouched) or agent.gone_at is not None:
            return False
        now, heartbeats = self.world.hub.now, self._heartbeats.get(agent.node_id, _Heartbeats())
        silent = now - heartbeats.last >= SILENCE or now - heartbeats.still_until < TOUCH
        return silent and agent.boot_id not in self._contradicted(entry.author)

    def _contradicted(self, reader: str) -> set[str]:
        """Return the host ids that a leader must know to belong to two hosts."""
        known = self._readers.get(reader)
        often = (
            [] if known is None else [node_id for (_, node_id), count in known.grown.items() if count >= CONTRADICTIONS]
        )
        return {agent.boot_id for node_id in often if (agent := self.world.agent(node_id)) is not None}


KINDS: dict[str, Callable[[World, Host, Fault], bool]] = {
    "outlive": _outlive,
    "release": _release,
    "lose-members": _lose_members,
    "deaf": _block_reads,
}
