"""One agent: core's own supervisor and session over a simulated worker group, store and clock."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from elastic_core.agent.event_loop import SignalReceived
from elastic_core.agent.resources import Resources
from elastic_core.agent.supervisor import Supervisor
from elastic_core.agent.worker import Node
from elastic_core.config.parse import OnNodeLoss
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig, Timing
from elastic_core.errors import ElasticError
from elastic_core.events import Event
from elastic_core.gates import HostEnd
from elastic_core.incidents import Action, History, Incident, Verdict
from elastic_core.protocol.entries import Closed, Offer
from elastic_core.protocol.node import NodeState
from elastic_core.protocol.roster import NodeInfo, Slots
from elastic_core.protocol.settings import Agreement, Command, Settings, Versions
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.rendezvous.options import RendezvousOptions
from elastic_core.session.join import Applicant, Arrival, FormerNode, arrive
from elastic_core.session.runtime import Runtime
from simulator import data_loss, forgeries, health_checks, peers, programs, questions, verdicts
from simulator.engine import TICK, Hub, Process, expire_after
from simulator.inbox import Inbox
from simulator.peers import PROBE_PORT
from simulator.runtime import runtime_of
from simulator.store import Connection
from simulator.worker_group import SimWorkerGroup

if TYPE_CHECKING:
    from simulator.plan import Plan
    from simulator.world import Host

VERSIONS = Versions(python="3.11.7")
TERM = 15


def config_of(plan: Plan) -> RunConfig:
    """Return the settings that all agents of a plan have."""
    timing = Timing(
        join_timeout=plan.join_timeout,
        fence_after=plan.fence_after,
        last_call_timeout=plan.last_call_timeout,
        plan_timeout=plan.plan_timeout,
        resize_wait=plan.resize_wait,
    )
    return RunConfig(
        program=Program(ProgramKind.EXECUTABLE, "train"),
        min_nodes=plan.min_nodes,
        max_nodes=plan.max_nodes,
        sizes=plan.sizes,
        spares=plan.spares,
        max_restarts=plan.max_restarts,
        on_node_loss=OnNodeLoss.REPLACE if plan.replace_lost else OnNodeLoss.FAIL,
        timing=timing,
        local_addr="10.0.0.1",
        shutdown_timeout=3.0,
        failure_grace=1.0,
        preemption_grace=plan.grace,
    )


class Stores:
    """Source of offers, in place of the agent's own; no port is opened."""

    def __init__(self, address: str, new_id: Callable[[], str]) -> None:
        self._address, self._new_id, self._port = address, new_id, 29500

    def offer(self, _in_use: Offer | None = None) -> Offer:
        """Return a new offer."""
        self._port += 1
        return Offer(self._address, self._port, self._new_id())

    def begin(self, _offer: Offer) -> None:
        """Do nothing: no process serves the workers' store."""

    def dead(self, _offer: Offer) -> bool:
        """Return False: no store dies by itself in the simulation."""
        return False


class SimResources(Resources):
    """The agent's resources, over the simulated ones."""

    def __init__(self, agent: SimAgent, config: RunConfig, plugins: object, runtime: Runtime) -> None:
        node = Node(config, cast("Any", plugins), agent._on_event, agent.info, agent.run, Path(), True, runtime)
        group, look = cast("Any", agent.group), partial(agent.host.visible_slots, agent.slot)
        unreachable = partial(peers.unreachable, agent.host)
        super().__init__(node, cast("Any", agent.inbox), frozenset({TERM}), group, group, look, unreachable)

    def fence(self, seconds: float | None) -> None:
        """Set the dead-man's switch; no process of a warden is looked at."""
        self.warden.fence(seconds)


class SimAgent:
    """One incarnation, from its start to its end."""

    def __init__(
        self, host: Host, node_id: str, slot: int, uid: str | None, slots: Slots, before: SimAgent | None
    ) -> None:
        self.host, self.node_id, self.slot, self.uid = host, node_id, slot, uid
        self.again = before is not None
        """True if the process was another node before."""
        self.former: tuple[FormerNode, ...] = before.former if before is not None else ()
        """The earlier nodes of the process; at its end, this node is added."""
        self.lineage: health_checks.Lineage = (
            before.lineage if before is not None else health_checks.Lineage(self, HostEnd(host.now))
        )
        self.lineage.agent = self
        self.lineage.ids.add(node_id)
        self.interruption: Any = None
        """Ends the health checks early; None before they begin."""
        self.watch: Any = None
        self.command = programs.OWN if host.world.plan.has_programs else Command()
        """The program of its workers, as other nodes read it."""
        self.verdicts_before: int | None = None
        """Number of verdicts when it had first read the ledger; None for an agent that reads it to join."""
        self.process_hub: Hub = host.world.hub
        self.process = Process(node_id, host.clock, host)
        self.process.lag = host.lag
        self.info = NodeInfo(
            node_id=node_id,
            host=host.name,
            host_id=host.boot_id,
            slot=slot,
            slots=slots,
            local_world_size=1,
            role="default",
            versions=VERSIONS,
            address=host.address,
            port=PROBE_PORT + slot if host.world.plan.max_nodes > 1 else 0,
        )
        self.inbox, self.group = Inbox(self), SimWorkerGroup(self)
        self.supervisor: Supervisor | None = None
        self.run = ""
        self.joined_at = 0.0
        """When it joined that run."""
        self.exit_code: int | None = None
        self.why = ""
        self.signalled = self._rejoins = False
        self.started_at = self.process_hub.now
        self.boot_id = host.boot_id
        self.over_at = -1e9  # when it ended
        self.gone_at: float | None = None
        """When the last process of its slot ended; None while one lives."""
        self.hosting = host.world.store.embedded and host.number == 0 and slot == 0
        """True if an embedded store lives in it."""
        self.task = self.process_hub.start(self.process, self._main)

    @property
    def over(self) -> bool:
        """True once it has ended, for any reason."""
        return self.process.dead

    @property
    def leaving(self) -> bool:
        """True if it was told to leave."""
        return self.signalled or (self.state is not None and self.state.leaving is not None)

    @property
    def is_checked(self) -> bool:
        """True while its node is being checked."""
        return self.interruption is not None and self.state is None

    @property
    def state(self) -> NodeState | None:
        """The node's state machine; None before it has one."""
        return None if self.supervisor is None else self.supervisor.state

    def _stop_hosted_store(self) -> None:
        """Stop the embedded store that lives in this process, if any."""
        if self.hosting:
            self.host.world.store.stop()
            self.host.world.count("the host of an embedded store is gone")

    def kill(self) -> None:
        """Kill it by SIGKILL; its last write may still be under way."""
        self.process.dead, self.over_at = True, self.host.world.hub.now
        self.host.world.note(self.node_id, "is killed")
        self._stop_hosted_store()

    def signal(self) -> None:
        """Send it SIGTERM."""
        self.signalled = True
        if self.interruption is not None:
            self.interruption.set()
        self.inbox.post(SignalReceived(TERM))

    def _main(self) -> None:
        world = self.host.world
        try:
            code, why = self._run()
        except ElasticError as exc:
            code, why = int(getattr(exc, "exit_code", 1)), str(exc)
        except Exception as exc:
            code, why = 70, "".join(traceback.format_exception(exc))
            world.checker.fail("defect", f"{self.node_id} ended with a traceback:\n{why}")
        self.exit_code, self.why = code, why
        world.checker.on_exit(self, code, why)
        self.process.dead, self.over_at = True, self.host.world.hub.now
        self._stop_hosted_store()
        world.hub.at(world.hub.now, self.group.on_agent_exit)
        if self._rejoins:
            if self.state is not None and self.state.run_replaced:
                data_loss.check_replaced_run(world, self)
                world.count("S3 a node of a run that was lost joins another")
            else:
                world.count("L17 a node leaves for its checks")
            world.hub.at(world.hub.now + TICK, self._rejoin)

    def _rejoin(self) -> None:
        """Start a new node in the same process."""
        if self.host.suspended:
            self.host.deferred.append(self._rejoin)
        else:
            self.host.start(self.uid, before=self, command=self.command)

    def _run(self) -> tuple[int, str]:
        world, plan = self.host.world, self.host.world.plan
        config = config_of(plan)
        agreement = Agreement(
            min_nodes=plan.min_nodes,
            max_nodes=plan.max_nodes,
            sizes=plan.sizes,
            spares=plan.spares,
            max_restarts=plan.max_restarts,
            on_node_loss=config.on_node_loss,
        )
        settings = Settings(
            agreement=agreement, timing=config.timing, versions=VERSIONS, host=self.host.name, command=self.command
        )
        stores = Stores(self.host.address, world.new_id)
        applicant = Applicant(
            info=self.info,
            settings=settings,
            scheduler_uid=self.uid,
            unnamed=plan.is_unnamed,
            offer=stores.offer(),
            former=self.former,
        )
        runtime = runtime_of(world, self.host.now, self._sleep)
        own = Connection(world.store, self.host.channel, self.process, hosting=self.hosting)
        store = forgeries.connection(own, plan.has_token, self.host.now)
        found = health_checks.enter(self, store, applicant, runtime, self._arrive(store, applicant, runtime))
        if isinstance(found, tuple):
            return found
        if isinstance(found, Closed):
            world.checker.on_verdict_report(self, found)
            world.count("S6 a latecomer hears the verdict")
            return found.exit_code, found.why
        self.run, self.joined_at = found.ledger.head.run, world.hub.now
        world.checker.on_join(self, found.ledger)
        plugins = SimpleNamespace(
            implementations=lambda *hooks: [],
            rendezvous_options=RendezvousOptions,
            judge=self._judge,
            node_gone=self._node_gone if plan.vouching in ("right", "wrong") else None,
            checks_again=bool(plan.check_seconds),
            sum_up_answers=partial(questions.sum_up, self),
            before_start=None,
            host_end=self.lineage.host_end,
        )
        self.supervisor = Supervisor(
            cast("Any", SimResources(self, config, plugins, runtime)),
            store,
            replace(applicant, former=self.former),
            found,
            cast("Any", stores),
        )
        try:
            ending = self.supervisor.run()
        finally:
            if not world.hub.over:
                self.supervisor.close()
        if ending.rejoin and self.signalled:  # too late for the supervisor
            with contextlib.suppress(ElasticError):
                store.remove(self.node_id)
            return 128 + TERM, "received SIGTERM"
        self._rejoins = ending.rejoin
        self.former = () if ending.former is None else (ending.former,)
        return ending.exit_code, ending.why

    def _arrive(self, store: RendezvousBackend, applicant: Applicant, runtime: Runtime) -> Arrival | None:
        """Read the ledger, and import modules if a round is live, as an agent with a fork server does."""
        world, most = self.host.world, self.host.world.plan.import_seconds
        if not (most or self.again or self.host.world.plan.check_seconds):
            return None
        arrival = arrive(store, applicant, runtime, again=self.again)
        self.verdicts_before = len(world.checker.verdicts)
        if most and arrival.round:
            world.count("S6 a newcomer imports while a round is live")
            self._sleep(most * world.hub.random.random())
        return arrival

    def _sleep(self, seconds: float) -> None:
        task = self.process_hub.task()
        expire_after(self.process_hub, task, seconds, None)
        task.park()

    def _judge(self, incident: Incident, history: History) -> Verdict:
        world = self.host.world
        assert self.supervisor is not None
        ledger, watch = self.supervisor.session.ledger, self.supervisor.session.watch
        if (current := ledger.round) is not None:
            rows = tuple(node.row for node in watch.nodes.values())
            cut_off = self.host.now() < watch.gap_at + ledger.settings.timing.lost_after
            silent_since = self.host.now() - verdicts.DRIFT * ledger.settings.timing.lost_after
            lost = frozenset(node.node_id for node in watch.nodes.values() if node.changed_at <= silent_since)
            judged = verdicts.Judgement(incident, world.hub.now, rows, cut_off, lost)
            world.checker.judged[self.node_id, current.offer.id] = judged
        if world.plan.policy_seconds:
            self._sleep(world.plan.policy_seconds * world.hub.random.random())
        if history.max_restarts is None or history.restarts < history.max_restarts:
            return verdicts.verdict(world, incident, history)
        return Verdict(Action.GIVE_UP, "no restart is left")

    def _node_gone(self, info: NodeInfo) -> bool:
        self._sleep(2.0 * self.host.world.hub.random.random())
        return self.host.world.checker.proofs.vouches(self.node_id, info.node_id)

    def _on_event(self, event: Event) -> None:
        self.host.world.on_event(self, event)
