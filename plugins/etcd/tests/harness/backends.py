"""Connections to real servers, made as an agent makes them; picklable, for other processes."""

from __future__ import annotations

from elastic_core.rendezvous.options import RendezvousParameters
from elastic_rdzv_etcd import plugin, plugin_v2
from elastic_rdzv_etcd.backend import EtcdBackend
from elastic_rdzv_etcd.backend_v2 import EtcdV2Backend


def parameters(endpoint: str, run_id: str = "job", **config: str) -> RendezvousParameters:
    """Return the parameters that core passes to a backend."""
    return RendezvousParameters(
        backend="etcd", endpoint=endpoint, run_id=run_id, min_nodes=1, max_nodes=2, config=config
    )


def opened(endpoint: str, prefix: str, run_id: str, **config: str) -> EtcdBackend:
    """A first connection over API v3."""
    return plugin.elastic_make_rendezvous(parameters(endpoint, run_id, etcd_prefix=prefix, **config))


def opened_v2(endpoint: str, prefix: str, run_id: str, **config: str) -> EtcdV2Backend:
    """The same over API v2."""
    return plugin_v2.elastic_make_rendezvous(parameters(endpoint, run_id, etcd_prefix=prefix, **config))
