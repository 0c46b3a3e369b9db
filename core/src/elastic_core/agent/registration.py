"""Turns the settings of a run into the first connection to the store and what the node tells the job, in its row."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from elastic_core.agent.directories import Slot
from elastic_core.agent.probing import ProbePort
from elastic_core.config.program import arguments_digest, name
from elastic_core.config.run import DEFAULT_ID, RunConfig
from elastic_core.host.identity import host_id, host_name, installed_versions, network_id
from elastic_core.plugins.manager import Plugins, failure_policies
from elastic_core.protocol.node import NodeState, row_of
from elastic_core.protocol.roster import LocalWorkers, NodeInfo, NodeRow, Slots
from elastic_core.protocol.settings import Agreement, Command, Settings, Versions
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.rendezvous.options import RendezvousParameters
from elastic_core.session.contact import FIRST_CONNECTION_SECONDS, StoreWait
from elastic_core.session.join import Applicant
from elastic_core.session.runtime import Runtime
from elastic_core.version import __version__

if TYPE_CHECKING:
    from elastic_core.agent.resources import Resources
    from elastic_core.session.session import Session


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
            name=name(config.program), arguments=arguments_digest(config.program, info.host), role=config.role
        ),
    )
    return Applicant(
        info=info,
        settings=settings,
        scheduler_uid=config.run_uid,
        allow_version_mismatch=config.allow_version_mismatch,
        unnamed=config.rdzv_id == DEFAULT_ID and config.node_rank is None,
    )


class OwnRow:
    """The row of this node, as it was published last. All methods run on the agent's loop."""

    def __init__(self, row: NodeRow, slots: Slots, resources: Resources, session: Session) -> None:
        self._row, self._slots, self._resources, self._session = row, slots, resources, session
        self._workers: LocalWorkers | None = None  # of its round, for ``elastic status``

    def follow(self, state: NodeState) -> None:
        """Publish the row if it has changed."""
        if (row := row_of(state)) != self._row:
            if row.round != self._row.round:
                self._workers = None
            self._row = row
            self._publish()

    def look_at_slots(self) -> None:
        """Look which slots of this host are held, and publish that if one is free now (rule S8)."""
        before, self._slots = self._slots, self._resources.look()
        if not set(before.held) <= set(self._slots.held):  # other changes go with the next amendment
            self._publish()

    def describe_workers(self) -> None:
        """Publish how far the workers are, for ``elastic status``, if they have moved."""
        if (found := self._resources.group.describe_workers(*self._session.heartbeats)) is not None:
            self._workers = found
            self._publish()

    def _publish(self) -> None:
        reached = self._resources.group.progress.reached()
        self._session.publish_row(replace(self._row, slots=self._slots, workers=self._workers, reached=reached))
