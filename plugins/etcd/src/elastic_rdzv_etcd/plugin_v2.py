"""The hooks that core calls: what the ``etcd-v2`` backend takes, and how its first connection is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core import hookimpl
from elastic_core.errors import PluginError
from elastic_core.rendezvous import RendezvousOptions, RendezvousParameters
from elastic_rdzv_etcd.options import CONF, FORM, Options, parse_endpoints

if TYPE_CHECKING:
    from elastic_rdzv_etcd.backend_v2 import EtcdV2Backend


@hookimpl
def elastic_rendezvous_options() -> RendezvousOptions:
    """Return the endpoint, and what ``--rdzv_conf`` may say."""
    return RendezvousOptions(endpoint=FORM, endpoint_required=True, conf=CONF)


@hookimpl
def elastic_make_rendezvous(params: RendezvousParameters) -> EtcdV2Backend:
    """Connect to the cluster.

    Raises:
        PluginError: python-etcd is not installed.
        UsageError: The endpoint or an option is wrong.
        RendezvousConnectionError: No member answers, or none lets us in or serves API v2.
    """
    options = Options.read(params.config)
    endpoints = parse_endpoints(params.endpoint, tls=options.tls)
    try:
        from elastic_rdzv_etcd.backend_v2 import EtcdV2Backend
        from elastic_rdzv_etcd.connection import Members
    except ImportError as exc:
        raise PluginError(
            f"The etcd-v2 backend needs python-etcd, which cannot be imported: {exc}.",
            hint="pip install python-etcd==0.4.5 'urllib3>=2', or take --rdzv_backend=etcd, which needs no client.",
        ) from exc
    return EtcdV2Backend(Members(endpoints, options), params.run_id)
