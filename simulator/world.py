"""The world of one plan: hosts with clocks, the store, the trainings, and the record of all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from elastic_core.protocol.roster import Slots
from simulator import health_checks, slot_rules
from simulator.agent import SimAgent
from simulator.assumptions import ASSUMPTIONS
from simulator.channel import Channel
from simulator.checker import Checker
from simulator.engine import Clock, Hub
from simulator.idle_nodes import IdleNodes
from simulator.overlaps import Overlaps
from simulator.plan import ISOLATED, Fault, Plan
from simulator.replica import Replica
from simulator.store import SimStore
from simulator.workers import Training, Worker

if TYPE_CHECKING:
    from elastic_core.events import Event
    from elastic_core.protocol.entries import Round
    from elastic_core.protocol.settings import Command
    from simulator.health_checks import Lineage

UID = "job-1"
FENCING = 1.0
"""Seconds within which a machine that was suspended stops workers that must not run any more."""


class Host:
    """One machine."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.name = chr(ord("a") + number)
        rates = world.plan.clock_rates
        began = (
            1000.0 * number
            if world.plan.twin_clock_offset is None or number > 1
            else 1000.0 + number * world.plan.twin_clock_offset
        )
        self.clock = Clock(world.hub, began, rates[number] if number < len(rates) else 1.0)
        self.wall_offset = 0.0
        """Offset of the wall clock; nothing may depend on it."""
        self.channel = Channel(world.store.master)
        self.boots = 1
        self.lag = 0.0
        self.isolated = False
        """True while it is partitioned from all other hosts, but not from the store."""
        self.isolated_at = self.isolated_until = 0.0
        self.severed: dict[int, float] = {}
        """Numbers of hosts from which it is partitioned, and until when."""
        self.off = False
        """True if it has no power, or no agent was started there yet."""
        self.ports_taken = False
        """True if no worker can open its port."""
        self.suspended = False
        """True while the whole machine is suspended."""
        self.lost_time_at = -1e9
        """The last time at which it resumed with a clock that had been suspended."""
        self.deferred: list[Callable[[], None]] = []
        """Calls of its processes that are deferred until it resumes."""
        self.agents: list[SimAgent] = []
        self.slots: dict[int, SimAgent] = {}
        self.faulty_until = 0.0
        """The end of the last fault of this host, as far as known."""

    @property
    def boot_id(self) -> str:
        """The stable host id, which changes with each boot."""
        return "twin-boot1" if self.shares_host_id else f"{self.name}-boot{self.boots}"

    @property
    def shares_host_id(self) -> bool:
        """True if another host has its host id, and neither sees the slots of the other."""
        return self.world.plan.twin_clock_offset is not None and self.number < 2 and self.boots == 1

    @property
    def address(self) -> str:
        """The host's address."""
        return f"10.0.0.{self.number + 1}"

    def now(self) -> float:
        """Return the time by the host's clock."""
        return self.clock.now()

    @property
    def living(self) -> list[SimAgent]:
        """The agents that run here."""
        return [agent for agent in self.agents if not agent.over]

    def start(self, uid: str | None, *, before: SimAgent | None = None, command: Command | None = None) -> SimAgent:
        """Start an agent, or ``before`` as another node."""
        slot = next(number for number in range(len(self.slots) + 1) if number not in self.slots)
        agent = SimAgent(self, f"{self.name}{len(self.agents) + 1}", slot, uid, self.visible_slots(slot), before)
        agent.command = command or agent.command
        self.agents.append(agent)
        self.world.register(agent)
        self.slots[slot] = agent
        self.off = False
        self.world.note(agent.node_id, f"starts on host {self.name}, slot {slot}")
        return agent

    def visible_slots(self, own: int) -> Slots:
        """Return the slots of other agents, as an agent sees them."""
        return Slots(int(self.clock.now() * 1e9), tuple(sorted(self.slots.keys() - {own})))

    def release_slot(self, agent: SimAgent) -> None:
        """Record that the last process of an agent's slot is gone."""
        if agent.over and self.slots.get(agent.slot) is agent:
            del self.slots[agent.slot]
            agent.gone_at = self.world.hub.now

    def power_off(self) -> None:
        """End all processes."""
        for agent in self.living:
            agent.kill()
        for agent in self.agents:
            if (worker := agent.group.worker) is not None:
                worker.stuck = False
                worker.kill()
                agent.group.worker = None
        for agent in self.slots.values():
            agent.gone_at = self.world.hub.now
        self.slots.clear()
        self.boots += 1
        self.off = True
        self.deferred.clear()
        self.suspended = False

    def resume(self) -> None:
        """Resume the machine."""
        self.world.hub.at(self.world.hub.now + FENCING, self.world.checker.on_machine_resumed)
        self.suspended = False
        deferred, self.deferred = self.deferred, []
        for function in deferred:
            self.world.hub.at(self.world.hub.now, function)
        for agent in self.living:
            agent.process.resume(self.world.hub)


class World:
    """All hosts, the store, the trainings and the checker."""

    def __init__(self, plan: Plan, *, traced: bool = False) -> None:
        self.plan = plan
        self.hub = Hub(plan.seed)
        self.coverage: Counter[str] = Counter()
        """Number of times that each rule and each fault was covered."""
        self.trace: list[tuple[float, str, str]] | None = [] if traced else None
        self.checker = Checker(self)
        self.store = SimStore(
            self.hub,
            self.checker.on_append,
            self.checker.on_shrink,
            latency=plan.latency,
            timeout=plan.timeout,
            count=self.count,
        )
        self.store.on_roster_read = self.checker.proofs.on_roster_read
        self.store.heartbeat = self.checker.proofs.on_heartbeat if self.checker.proofs.deceptive else None
        self.store.on_row_sent = lambda value: slot_rules.check_row(self, value.value)
        self.store.on_overload = lambda what: self.checker.fail("fault 31", what)
        self.store.embedded, self.store.may_forget = plan.embedded, plan.may_forget
        self.store.stale_reads, self.store.guarded, self.store.stale_sentinels = (
            plan.stale_reads,
            plan.guarded,
            plan.stale_sentinels,
        )
        self.idle_nodes = IdleNodes(self)
        self.store.idle_nodes = self.idle_nodes if plan.idle_nodes else None
        self.store.roster_delay = plan.roster_seconds
        self.hosts = [Host(self, number) for number in range(plan.hosts)]
        self.work_left = plan.work_seconds
        self.saves = 0
        """Number of checkpoints that the script has saved."""
        self.step: dict[str, int] = {}
        """The last saved step of each run whose workers count steps."""
        self.same_ids = False
        """True while agents that ask for an id at one head of the ledger get the same id."""
        self.overlaps = Overlaps(self) if plan.profile in ASSUMPTIONS else None
        """Measures how long rounds train at once, where an assumption is broken."""
        self.split_at: float | None = None
        """The time at which a master was replaced that still answers some hosts; None without one."""
        self.lost_data = False
        """True once the store has lost anything."""
        self.snapshots: dict[Fault, Replica] = {}
        """Copies of the store for faults that restore an earlier state."""
        self.faulty_until = 0.0
        """The end of the last fault of the store."""
        self._trainings: dict[tuple[str, int, str], Training] = {}
        self._agents: dict[str, SimAgent] = {}
        self.lineages: dict[str, Lineage] = {}
        """Lineages by all their node ids."""
        self._addresses = {host.address: host for host in self.hosts}
        self._ids = 0

    @property
    def broken_host(self) -> Host | None:
        """The host that stays cut off from the store, if there is one."""
        return self.hosts[-1] if self.plan.lasting_fault not in (0, ISOLATED) else None

    def count(self, what: str) -> None:
        """Count a rule or a fault."""
        self.coverage[what] += 1

    def note(self, who: str, what: str) -> None:
        """Add a line to the timeline."""
        if self.trace is not None:
            self.trace.append((self.hub.now, who, what))

    def on_event(self, agent: SimAgent, event: Event) -> None:
        """Record an event that an agent publishes."""
        self.coverage[f"says {event.name}"] += 1
        forged = self.checker.forgeries
        if event.name == "store_lost" and not (self.store.embedded or self.lost_data or forged.entries or forged.rows):
            self.checker.fail("S3", f"{agent.node_id} gives up a store that holds nothing unreadable: {event.message}")
        self.checker.departures.on_event(agent, event)
        if event.name == "checked_again":
            health_checks.left_for_checks(agent)
        if event.name == "workers_done":
            self.checker.on_workers_done(agent)
        if event.name == "signal" and "other nodes have finished" in event.message:
            self.count("L7 a node that is told to leave may finish as others have")
        if self.trace is not None:
            self.note(agent.node_id, event.message)

    def new_id(self) -> str:
        """Return an id that serves as a random one."""
        self._ids += 1
        return f"#{self._ids}"

    def new_entry_id(self) -> str:
        """Return an entry id that serves as a random one."""
        return f"~{self.store.master.head}" if self.same_ids else self.new_id()

    def training(self, run: str, current: Round) -> Training:
        """Return the training of a round."""
        key = (run, current.number, current.offer.id)
        if key not in self._trainings:
            self._trainings[key] = Training(self, run, current)
        return self._trainings[key]

    def worker(self, run: str, current: Round | None, node_id: str) -> Worker | None:
        """Return a node's workers of a round, if they were ever started."""
        if current is None:
            return None
        training = self._trainings.get((run, current.number, current.offer.id))
        return training.workers.get(node_id) if training is not None else None

    def agent(self, node_id: str) -> SimAgent | None:
        """Return the agent of this id."""
        return self._agents.get(node_id)

    def host_at(self, address: str) -> Host:
        """Return the host of an address."""
        return self._addresses[address]

    def newest_round(self, run: str) -> Round | None:
        """Return the newest round of a run on the server that all nodes use in the end."""
        return self.checker.histories.newest_round(self.store.master, run)

    def trainings(self) -> list[Training]:
        """Return all trainings ever started."""
        return list(self._trainings.values())

    def record_checkpoint(self, seconds: float) -> None:
        """Record the work of a training that was active for so long."""
        self.work_left = max(0.5, self.work_left - seconds)

    def register(self, agent: SimAgent) -> None:
        """Add a new agent."""
        self._agents[agent.node_id] = agent
        self.lineages[agent.node_id] = agent.lineage

    def agents(self) -> list[SimAgent]:
        """Return all agents ever started, in the order of hosts."""
        return [agent for host in self.hosts for agent in host.agents]

    def living(self) -> list[SimAgent]:
        """Return all agents that run."""
        return [agent for agent in self.agents() if not agent.over]
