"""Joins a node to its job, from the first connection to the store, and runs its supervisor to the end of its part.

Plugins are told of the end (``elastic_agent_ends``).
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from elastic_core.agent import report
from elastic_core.agent.directories import Slot
from elastic_core.agent.gates import Interruption, pass_gate, repeats_request, wait_for_starter
from elastic_core.agent.probing import CLOSE_INTERVAL_SECONDS, ProbePort
from elastic_core.agent.report import Ending, Publish, finish, publish_as
from elastic_core.agent.resources import Launch, leave_signals, open_resources
from elastic_core.agent.supervisor import Supervisor, settle_exit
from elastic_core.agent.worker_store import OnePort, SharedStore, Stores
from elastic_core.config.program import ProgramKind, arguments_digest, name as program_name
from elastic_core.config.run import DEFAULT_ID, RunConfig
from elastic_core.distributions import brought
from elastic_core.errors import how_to_install
from elastic_core.events import Event, Level
from elastic_core.exit_codes import ExitCode, signal_name, signalled
from elastic_core.gates import LOOK_SECONDS, AgentEnd, JoinedRun
from elastic_core.host.addresses import advertised_address, own_address
from elastic_core.host.identity import host_id, host_name, installed_versions, network_id
from elastic_core.plugins.manager import Plugins, failure_policies
from elastic_core.protocol.admission import describe_differences
from elastic_core.protocol.entries import Closed
from elastic_core.protocol.node_events import Exit
from elastic_core.protocol.roster import NodeInfo
from elastic_core.protocol.settings import Agreement, Command, Settings, Versions
from elastic_core.rendezvous.backend import HandlerStore, RendezvousBackend, workers_store
from elastic_core.rendezvous.options import RendezvousParameters
from elastic_core.session.contact import FIRST_CONNECTION_SECONDS, StoreWait
from elastic_core.session.join import Applicant, Arrival, Joined, LedgerWatch, arrive, join
from elastic_core.session.runtime import RUNTIME, Runtime
from elastic_core.starter import installed
from elastic_core.version import __version__
from elastic_core.warden.client import Warden
from elastic_core.warden.messages import WardenEvent

T = TypeVar("T")
LISTENS_EVERYWHERE = "the workers' store here listens at all of them, for connections that are translated on the way"


def parameters(config: RunConfig) -> RendezvousParameters:
    """Return the parameters of the backend."""
    return RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.rdzv_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes + config.spares,
        local_addr=config.local_addr,
        node_rank=config.node_rank,
        token=config.job_token,
        config=config.rdzv_conf,
    )


def first_connection(config: RunConfig, plugins: Plugins) -> RendezvousBackend:
    """Return the backend's first connection, after a wait, which is published, for a store that is not up yet.

    A backend with an embedded store waits by itself, and so does a handler.

    Raises:
        RendezvousConnectionError: The store cannot be reached, or does not let this node in.
        UsageError: The endpoint or an option is wrong.
        PluginError: The backend's plugin failed, or made nothing.
    """
    make, options = partial(plugins.make_rendezvous, parameters(config)), plugins.rendezvous_options()
    if options.embedded or options.handler:
        return make()
    patience = min(FIRST_CONNECTION_SECONDS, config.timing.join_timeout)
    return StoreWait(config.rdzv_endpoint, patience, plugins.publish).connect(make)


def connect_and_run(launch: Launch) -> Ending:
    """Make the first connection to the job's store, join the job, and take part in it to the end. Main thread only.

    Raises:
        ElasticError: The store cannot be reached, the node was refused, or too few nodes came. No worker was started.
    """
    plugins, warden = launch.plugins, launch.warden
    if warden.starter is None and (problem := starter_problem(warden, launch.config)) is not None:
        plugins.publish(problem)
    with ExitStack() as stack:
        store = stack.enter_context(closing(first_connection(launch.config, plugins)))
        if isinstance(store, HandlerStore) and store.job_id:
            launch = replace(launch, config=replace(launch.config, rdzv_id=store.job_id))
        newcomer = Newcomer(launch, store, stack)
        with ExitStack() as entrance:
            joined = newcomer.pass_gates(entrance) or newcomer.join()
        if isinstance(joined, Ending):
            return joined
        supervisor = newcomer.supervise(joined)
        ending = run_to_end(supervisor)
    late = supervisor.resources.loop.late_signals
    if ending.rejoin and late:  # the row stays: it says that the node leaves
        end = settle_exit(Exit(ending.exit_code, ending.why, rejoin=True), late[0])
        return report.leave(newcomer.publish, end.code, end.why, None)
    return ending


def starter_problem(warden: Warden, config: RunConfig) -> Event | None:
    """Return the event that workers start as new interpreters although they need not; call it without a starter."""
    if (failed := warden.starter_problem) is not None:
        return Event("no_starter", f"each worker starts as a new interpreter. {failed.message}", Level.WARNING)
    if config.program.kind is ProgramKind.EXECUTABLE or any(installed()):
        return None
    message = "each worker starts as a new interpreter and imports everything by itself; forked workers start faster"
    hint = how_to_install(next(iter(brought("starters").values())))
    return Event("no_starter", f"{message}.\n{hint}")


class Newcomer:
    """A node on its way into its job. A step that returns an Ending is the last one: the node does not join.

    ``store`` is the first connection to the job's store; ``stack`` closes what the node has opened, at its end.
    """

    def __init__(self, launch: Launch, store: RendezvousBackend, stack: ExitStack) -> None:
        config, plugins = launch.config, launch.plugins
        self._launch, self._store, self._stack = launch, store, stack
        options, single = plugins.rendezvous_options(), config.max_nodes == 1
        self._over_handler = options.handler
        address = advertised_address(config.rdzv_endpoint, options.endpoint, config.local_addr, single_node=single)
        self._probe_port = None if single or options.handler else stack.enter_context(closing(ProbePort(address)))
        applicant = applicant_for(config, plugins, launch.slot, RUNTIME, self._probe_port)
        self._applicant = replace(applicant, former=() if launch.former is None else (launch.former,))
        self.publish = partial(publish_as, plugins, applicant.info)
        self._arrival: Arrival | None = None
        self._heard: list[WardenEvent] = []
        self._stores = stack.enter_context(closing(_make_stores(launch, store, address)))
        message = f"joining job {config.rdzv_id!r} over {config.rdzv_backend} as {applicant.info}"
        self.publish(Event("joining", message, fields={"node_id": applicant.info.node_id}))
        for warning in store.warnings:
            self.publish(Event("store_warning", f"{warning.message} {warning.hint}".rstrip(), Level.WARNING))
        if own_address(address) is None:
            message = f"{address} is not an address of this host: {LISTENS_EVERYWHERE}"
            self.publish(Event("listens_everywhere", message))

    def pass_gates(self, entrance: ExitStack) -> Ending | None:
        """Wait for the checks of the plugins, and for the starter where a round is live (rule L17).

        Meanwhile a ledger watch may learn that the run ends, or that the node is drained; ``entrance`` closes it.

        Raises:
            UnhealthyNodeError: A check keeps this host out.
        """
        launch, config, watch = self._launch, self._launch.config, None
        starter, again = launch.warden.starter, launch.former is not None
        patience = config.timing.join_timeout if self._over_handler else math.inf
        gate = launch.plugins.join_gate(config, self.publish, patience)
        takes_time = not all(check.quick for check in gate.checks)
        if starter or again or takes_time:
            self._arrival = self._persist(lambda to: arrive(to, self._applicant, RUNTIME, again=again))
        arrival = self._arrival
        # A running job stops its round for a new node. Import first, so that it waits only for the switch.
        imports = starter is not None and arrival is not None and arrival.round > 0
        with closing(Interruption(leave_signals(config), launch.plugins.host_end)) as interruption:
            if arrival is not None and (takes_time or imports):
                watch = LedgerWatch(self._store, self._applicant, RUNTIME, arrival, tell=interruption.wake)
                entrance.callback(watch.close)
                watch.wait_until_entered(config.timing.beat_interval)
            pass_gate(gate, interruption)
            if starter and arrival is not None and imports and not interruption.is_due():
                self.publish(report.under_way(arrival, starter.imports))
                self._heard = wait_for_starter(launch.warden, interruption)
        if (end := interruption.end) is not None:
            return report.leave(self.publish, end.code, end.why, None)
        if watch is None:
            return None
        if (verdict := watch.verdict()) is not None:
            return finish(self.publish, verdict, idle=report.TOO_LATE)
        watch.stop()
        if watch.drained:
            return report.leave(self.publish, signalled(signal.SIGTERM), watch.drained, None)
        self._applicant = replace(self._applicant, former=watch.former)
        return None

    def join(self) -> Joined | Ending:
        """Enter the roster, with a place for the workers' store."""
        self._applicant = replace(self._applicant, offer=self._stores.offer())
        joined = self._persist(lambda to: join(to, self._applicant, RUNTIME, self._arrival))
        if isinstance(joined, Closed):
            return finish(self.publish, joined, idle=report.TOO_LATE)
        for difference in describe_differences(joined.ledger.settings, self._applicant.settings):
            self.publish(Event("settings_differ", difference, Level.WARNING))
        return joined

    def supervise(self, joined: Joined) -> Supervisor:
        """Return the supervisor of the node that has joined."""
        launch, store, info = self._launch, self._store, self._applicant.info
        try:
            opened = open_resources(launch, self.publish, info, joined.ledger.head.run, heard=self._heard)
            resources = self._stack.enter_context(opened)
            supervisor = Supervisor(resources, store, self._applicant, joined, self._stores)
        except BaseException:
            with suppress(Exception):
                store.remove(info.node_id)  # else a round may include this node, and the others must find it lost
            raise
        if (port := self._probe_port) is not None:

            def close_probes() -> None:
                port.close_probes()
                resources.loop.later(CLOSE_INTERVAL_SECONDS, close_probes)

            close_probes()
        node, connect = resources.node, None if self._over_handler else store.connect
        run = JoinedRun(
            config=node.config,
            run_uid=node.run_uid,
            node=node.info,
            log_dir=None if node.temporary else node.directory,
            leave=launch.plugins.host_end.leave,
            publish=node.publish,
            look=supervisor.look,
            decisions=supervisor.account.decisions,
            connect=connect,
        )
        launch.plugins.run_starts(run)
        return supervisor

    def _persist(self, call: Callable[[RendezvousBackend], T]) -> T:
        """Call the store until it answers or the patience is over, and report meanwhile that it is silent."""
        config = self._launch.config
        return StoreWait(config.rdzv_endpoint, config.timing.join_timeout, self.publish).call(self._store, call)


def applicant_for(
    config: RunConfig, plugins: Plugins, slot: Slot, runtime: Runtime, probe_port: ProbePort | None = None
) -> Applicant:
    """Return this node and its settings; ``probe_port`` is the port that its peers may probe."""
    versions = Versions(**installed_versions())
    info = NodeInfo(
        node_id=runtime.new_id(),
        host=host_name(),
        host_id=host_id(),
        network=network_id(),
        slot=slot.number,
        slots=slot.slots,
        local_world_size=config.nproc_per_node,
        role=config.role,
        node_rank=config.node_rank,
        order=config.order,
        versions=versions,
        address="" if probe_port is None else probe_port.address,
        port=0 if probe_port is None else probe_port.port,
    )
    agreement = Agreement(
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        sizes=config.sizes,
        spares=config.spares,
        max_restarts=config.max_restarts,
        on_node_loss=config.on_node_loss,
        failure_policies=failure_policies(plugins),
        worker_plugins=plugins.in_workers,
        flags=plugins.agreed_flags,
    )
    settings = Settings(
        agreement=agreement,
        timing=config.timing,
        versions=versions,
        host=str(info),
        release=__version__,
        command=Command(
            name=program_name(config.program), arguments=arguments_digest(config.program, info.host), role=config.role
        ),
    )
    return Applicant(
        info=info,
        settings=settings,
        scheduler_uid=config.run_uid,
        allow_version_mismatch=config.allow_version_mismatch,
        unnamed=config.rdzv_id == DEFAULT_ID and config.node_rank is None,
    )


def _make_stores(launch: Launch, store: RendezvousBackend, address: str) -> Stores:
    """Return what reserves places for the workers' store of each round."""
    served, new_id = launch.warden.starter.store if launch.warden.starter else "", RUNTIME.new_id
    if (shared := workers_store(store)) is not None:
        return SharedStore(launch.warden, shared, new_id)
    if launch.config.master_port is not None:
        return OnePort(launch.warden, address, new_id, launch.config.master_port, served_by=served)
    return Stores(launch.warden, address, new_id, served_by=served)


def run_to_end(agent: Supervisor) -> Ending:
    """Run an agent to its end, close it, and have plugins rescue its memory if no other node continues from that.

    This is done also if the agent raises an :class:`Exception`, since all other nodes may fail in the same way. Other
    exceptions, such as KeyboardInterrupt, stop this node only. The caller closes its resources afterwards.
    """
    ending, failed = None, False
    try:
        with closing(agent):
            ending = agent.run()
        return ending
    except Exception:
        failed = ending is None
        raise
    finally:
        try:
            _tell_plugins(agent, ending, failed=failed)
        except Exception as error:  # must not replace the agent's own ending or exception
            _publish_lost(agent.resources.node.publish, repr(error))


def needs_rescue(
    ending: Ending | None, closed: Closed | None, leaves_others: Callable[[], bool], *, failed: bool = False
) -> bool:
    """Return whether no other node continues from the memory of this node.

    ``ending`` is None if the agent raised, and ``failed`` is True if a defect raised, not a request to stop. ``closed``
    is the verdict on the job, if there is one. ``leaves_others`` returns whether other nodes, which have the state too,
    stay in the job; it is called only if that matters.
    """
    # After STORE_LOST the node joins another run, which has only the checkpoints on disk.
    if ending is not None and ending.rejoin and ending.exit_code != ExitCode.STORE_LOST:
        return False
    if closed is not None:
        return not closed.success
    return failed or (ending is not None and ending.exit_code == ExitCode.STORE_LOST) or not leaves_others()


def signal_received(signals: Callable[[], list[int]], signalled_at: float | None = None) -> str:
    """Return which signal has come that does not repeat the first one; '' for none.

    ``signals`` returns the signals that the agent has received since the last call. It received its first one at
    ``signalled_at`` of the monotonic clock; the same request may repeat it.
    """
    since = math.inf if signalled_at is None else time.monotonic() - signalled_at
    ends = [signum for signum in signals() if not repeats_request(signum, since - LOOK_SECONDS)]
    return f"the agent received {signal_name(ends[0])}" if ends else ""


def _tell_plugins(agent: Supervisor, ending: Ending | None, *, failed: bool) -> None:
    """Tell the plugins of the agent's end."""
    node, untaken = agent.resources.node, agent.resources.loop.untaken_signals
    is_last = partial(needs_rescue, ending, agent.closed, agent.leaves_others, failed=failed)
    end = AgentEnd(str(node.info), node.publish, partial(signal_received, untaken, agent.signalled_at), is_last, failed)
    for plugin in node.plugins.implementations("elastic_agent_ends"):
        try:
            plugin(end=end)
        except Exception as error:
            _publish_lost(node.publish, f"the plugin {plugin.plugin!r} raised {error!r}")


def _publish_lost(publish: Publish, why: str) -> None:
    publish(Event("rescue_failed", f"what a plugin keeps in memory for workers may be lost: {why}", Level.ERROR))
