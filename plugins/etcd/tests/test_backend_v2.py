"""API v2 passes the suite on a real server, over python-etcd."""

from __future__ import annotations

from functools import partial

import pytest
from backends import opened_v2
from etcd_servers import Etcd

from elastic_core.testing.backend_conformance import BackendConformance, ProcessConformance
from elastic_core.testing.connections import MakeBackend


class TestEtcdV2Backend(BackendConformance, ProcessConformance):
    @pytest.fixture
    def make_backend(self, server: Etcd, prefix: str) -> MakeBackend:
        return partial(opened_v2, server.endpoint, prefix)

    @pytest.fixture
    def opener(self, make_backend: MakeBackend) -> MakeBackend:
        return make_backend
