"""API v2 passes the suite on a real server, over python-etcd."""

from __future__ import annotations

from functools import partial

import pytest
from etcd_servers import Etcd

from elastic_core.rendezvous.api import RendezvousParameters
from elastic_core.testing.backend_conformance import BackendConformance, ProcessConformance
from elastic_core.testing.connections import MakeBackend
from elastic_rdzv_etcd.backend_v2 import EtcdV2Backend
from elastic_rdzv_etcd.plugin_v2 import elastic_make_rendezvous


def parameters(endpoint: str, run_id: str = "job", **config: str) -> RendezvousParameters:
    return RendezvousParameters(
        backend="etcd-v2", endpoint=endpoint, run_id=run_id, min_nodes=1, max_nodes=2, config=config
    )


def opened(endpoint: str, prefix: str, run_id: str) -> EtcdV2Backend:
    """As an agent opens it; picklable, for other processes."""
    return elastic_make_rendezvous(parameters(endpoint, run_id, etcd_prefix=prefix))


class TestEtcdV2Backend(BackendConformance, ProcessConformance):
    @pytest.fixture
    def make_backend(self, server: Etcd, prefix: str) -> MakeBackend:
        return partial(opened, server.endpoint, prefix)

    @pytest.fixture
    def opener(self, make_backend: MakeBackend) -> MakeBackend:
        return make_backend
