"""Turns the settings of a run into the first connection to the store and what the node tells the job, in its row."""

from __future__ import annotations

from functools import partial

from elastic_core.agent.directories import Slot
from elastic_core.agent.probing import ProbePort
from elastic_core.config.program import arguments_digest, name
from elastic_core.config.run import DEFAULT_ID, RunConfig
from elastic_core.host.identity import host_id, host_name, installed_versions, network_id
from elastic_core.plugins.manager import Plugins, failure_policies
from elastic_core.protocol.roster import NodeInfo
from elastic_core.protocol.settings import Agreement, Command, Settings, Versions
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.rendezvous.options import RendezvousParameters
from elastic_core.session.contact import FIRST_CONNECTION_SECONDS, StoreWait
from elastic_core.session.join import Applicant
from elastic_core.session.runtime import Runtime
from elastic_core.version import __version__


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
