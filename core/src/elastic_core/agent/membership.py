"""Joins a node to its job and runs its supervisor until the end of the node's part in it."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from elastic_core.agent import report, rescue, starters
from elastic_core.agent.health import HealthChecks
from elastic_core.agent.interruption import Interruption
from elastic_core.agent.probing import Door
from elastic_core.agent.registration import applicant_for
from elastic_core.agent.report import Ending, finish, publish_as
from elastic_core.agent.resources import leave_signals, open_resources
from elastic_core.agent.shutdown import settle_exit
from elastic_core.agent.slot import Slot
from elastic_core.agent.status import ShowState, Status
from elastic_core.agent.supervisor import Supervisor
from elastic_core.agent.worker_store import OnePort, SharedStore, Stores
from elastic_core.config.run import RunConfig
from elastic_core.events import Event, Level
from elastic_core.exit_codes import signalled
from elastic_core.host.addresses import advertised_address
from elastic_core.host.ports import own_address
from elastic_core.plugins.manager import Plugins
from elastic_core.protocol.admission import describe_differences
from elastic_core.protocol.entries import Closed
from elastic_core.protocol.node_events import Exit
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.session.arrival import FormerNode
from elastic_core.session.contact import persist, silent_store, store_awaited
from elastic_core.session.join import arrive, join
from elastic_core.session.ledger_watch import Lookout
from elastic_core.session.runtime import RUNTIME, Runtime
from elastic_core.session.store_calls import silence_told
from elastic_core.warden.client import Warden
from elastic_core.warden.messages import WardenEvent

T = TypeVar("T")
LISTENS_EVERYWHERE = "the workers' store here listens at all of them, for connections that are translated on the way"


def join_and_run(
    config: RunConfig,
    plugins: Plugins,
    store: RendezvousBackend,
    slot: Slot,
    warden: Warden,
    *,
    cpus: tuple[frozenset[int], ...],
    former: FormerNode | None = None,
    show_state: ShowState = lambda _: None,
) -> Ending:
    """Join the job, and take part in it to the end. Main thread only.

    Args:
        store: The first connection to the job's store; the caller closes it.
        cpus: The CPUs of each local rank; () if workers are not bound.
        former: The node that this agent was just before, in this run, or in one that it has replaced (S3).
        show_state: Takes a function that describes the state; a newer one replaces it.

    Raises:
        ElasticError: The node was refused, or too few nodes came. No worker was started.
    """
    runtime, warm = RUNTIME, warden.starter is not None
    with ExitStack() as stack:
        show_state(Status.of(config).describe_joining)
        options, single = plugins.rendezvous_options(), config.max_nodes == 1
        address = advertised_address(config.rdzv_endpoint, options.endpoint, config.local_addr, single_node=single)
        door = None if single or options.handler else stack.enter_context(closing(Door(address)))
        applicant = applicant_for(config, plugins, slot, runtime, door)
        info = applicant.info
        publish = partial(publish_as, plugins, info)
        publish(report.joining(config, info))
        for warning in store.warnings:
            publish(Event("store_warning", f"{warning.message} {warning.hint}".rstrip(), Level.WARNING))
        if own_address(address) is None:
            publish(Event("listens_everywhere", f"{address} is not an address of this host: {LISTENS_EVERYWHERE}"))
        heard: list[WardenEvent] = []
        patience = config.timing.join_timeout

        def persist_with(call: Callable[[RendezvousBackend], T]) -> T:
            """Call the store until it answers or the patience is over, and report meanwhile that it is silent."""

            def attempt(to: RendezvousBackend) -> T:
                with silence_told(to, lambda exc: publish(silent_store(exc)), config.rdzv_endpoint):
                    return call(to)

            awaited = partial(store_awaited, config.rdzv_endpoint, patience)
            return persist(store, attempt, lambda exc: publish(awaited(exc)), timeout=patience)

        arrival, health = None, HealthChecks(config.rdzv_id, plugins.node_checks(config), warden, publish)
        if former is not None:
            applicant = replace(applicant, former=(former,))
        if warm or former is not None or health.take_time:
            arrival = persist_with(lambda to: arrive(to, applicant, runtime, again=former is not None))
        with ExitStack() as joining:
            lookout: Lookout | None = None
            with closing(Interruption(leave_signals(config), plugins.host_end)) as interruption:
                if arrival is not None and (health.take_time or (warm and arrival.round)):
                    # A running job stops its round for a new node. Import first, so that it waits only for the switch.
                    lookout = Lookout(store, applicant, runtime, arrival, tell=interruption.wake)
                    joining.enter_context(closing(lookout))
                    lookout.wait_until_entered(config.timing.beat_interval)
                health.run(interruption, patience=patience if options.handler else math.inf)
                heard += health.heard
                if warden.starter and arrival is not None and arrival.round and not interruption.is_due():
                    publish(report.under_way(arrival, warden.starter.imports))
                    heard = starters.wait_until_ready(warden, interruption, heard)
            if (end := interruption.end) is not None:
                return report.leave(publish, end.code, end.why, None)
            if lookout is not None:
                if (verdict := lookout.verdict()) is not None:
                    return finish(publish, verdict, idle=report.TOO_LATE)
                lookout.stop()
                if lookout.drained:
                    return report.leave(publish, signalled(signal.SIGTERM), lookout.drained, None)
                applicant = replace(applicant, former=lookout.former)
            stores = stack.enter_context(closing(_make_stores(config, store, warden, runtime, address)))
            applicant = replace(applicant, offer=stores.offer())
            joined = persist_with(lambda to: join(to, applicant, runtime, arrival))
        if isinstance(joined, Closed):
            return finish(publish, joined, idle=report.TOO_LATE)
        for difference in describe_differences(joined.ledger.settings, applicant.settings):
            publish(Event("settings_differ", difference, Level.WARNING))
        try:
            run = joined.ledger.head.run
            resources = stack.enter_context(
                open_resources(config, plugins, publish, info, run, warden, slot, heard=heard, cpus=cpus)
            )
            supervisor = Supervisor(resources, runtime, store, applicant, joined, stores, slot.look)
        except BaseException:
            with suppress(Exception):
                store.remove(info.node_id)  # else a round may include this node, and the others must find it lost
            raise
        if door is not None:
            resources.loop.watch(door, door.greet)
        show_state(supervisor.describe)
        resources.announce(supervisor.describe, None if options.handler else store.connect)
        ending = rescue.run(supervisor, resources)
    if ending.rejoin and (late := resources.loop.late_signals):  # the row stays: it says that the node leaves
        end = settle_exit(Exit(ending.exit_code, ending.why, rejoin=True), late[0].signum)
        return report.leave(publish, end.code, end.why, None)
    return ending


def _make_stores(
    config: RunConfig,
    store: RendezvousBackend,
    warden: Warden,
    runtime: Runtime,
    address: str,
) -> Stores:
    """Return what reserves places for the workers' store of each round."""
    served = warden.starter.store if warden.starter else ""
    if store.workers_store is not None:
        return SharedStore(warden, store.workers_store, runtime.new_id)
    if config.master_port is not None:
        return OnePort(warden, address, runtime.new_id, config.master_port, served_by=served)
    return Stores(warden, address, runtime.new_id, served_by=served)
