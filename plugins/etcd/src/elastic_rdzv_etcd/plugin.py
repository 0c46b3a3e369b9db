"""The hooks that core calls: what the ``etcd`` backend takes, and how its first connection is made."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core import hookimpl
from elastic_core.errors import UsageError
from elastic_core.rendezvous import RendezvousOptions, RendezvousParameters
from elastic_rdzv_etcd.options import CONF, FORM, Endpoint, Options, parse_endpoints

if TYPE_CHECKING:
    from elastic_rdzv_etcd.backend import EtcdBackend

BINARY = "etcd_binary"


@hookimpl
def elastic_rendezvous_options() -> RendezvousOptions:
    """Return the endpoint, and what ``--rdzv_conf`` may say."""
    binary = "the etcd that --standalone starts [ELASTIC_ETCD_BINARY, else the one on PATH]"
    return RendezvousOptions(endpoint=FORM, endpoint_required=True, conf={**CONF, BINARY: binary}, standalone=True)


@hookimpl
def elastic_make_rendezvous(params: RendezvousParameters) -> EtcdBackend:
    """Connect to the cluster; without an endpoint (``--standalone``) to an etcd that is started for this agent.

    Raises:
        UsageError: The endpoint or an option is wrong, or there is no etcd to start.
        RendezvousConnectionError: No member answers, or none lets us in; or the etcd that was started does not serve.
    """
    options = Options.read(params.config)
    if not params.endpoint:
        return _standalone(params, options)
    if BINARY in params.config:
        raise UsageError(f"--rdzv_conf {BINARY}={params.config[BINARY]!r} means something with --standalone only.")
    endpoints = parse_endpoints(params.endpoint, tls=options.tls)
    from elastic_rdzv_etcd.backend import EtcdBackend  # imports an HTTP client
    from elastic_rdzv_etcd.client import Cluster

    backend = EtcdBackend(Cluster(endpoints, options), params.run_id)
    backend.check_history(params.max_nodes)
    return backend


def _standalone(params: RendezvousParameters, options: Options) -> EtcdBackend:
    from elastic_rdzv_etcd.backend import EtcdBackend
    from elastic_rdzv_etcd.client import Cluster
    from elastic_rdzv_etcd.sidecar import Sidecar, find_binary

    sidecar = Sidecar.start(find_binary(params.config))
    try:
        nobody = replace(options, user=None, password=None)  # it is ours, and has no users
        return EtcdBackend(Cluster([Endpoint("127.0.0.1", sidecar.port)], nobody), params.run_id, sidecar=sidecar)
    except BaseException:
        sidecar.close()
        raise
