"""API v3 passes the suite on a real server."""

from __future__ import annotations

from functools import partial

import pytest
from backends import opened
from etcd_servers import Etcd

from elastic_testing.backend_conformance import BackendConformance, ProcessConformance
from elastic_testing.connections import MakeBackend


class TestEtcdBackend(BackendConformance, ProcessConformance):
    @pytest.fixture
    def make_backend(self, server: Etcd, prefix: str) -> MakeBackend:
        return partial(opened, server.endpoint, prefix)

    @pytest.fixture
    def opener(self, make_backend: MakeBackend) -> MakeBackend:
        return make_backend
