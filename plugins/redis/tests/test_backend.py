"""The contract of backends on a real server, and what is this backend's own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import redis
from redis_servers import Daemon, redis_server

from elastic_core.rendezvous.api import RendezvousParameters
from elastic_core.testing.backend_conformance import BackendConformance, ProcessConformance
from elastic_core.testing.connections import MakeBackend
from elastic_rdzv_redis.backend import RedisBackend
from elastic_rdzv_redis.plugin import elastic_make_rendezvous


def opened(endpoint: str, run_id: str = "job", **config: str) -> RedisBackend:
    """As an agent opens it; picklable, for other processes."""
    parameters = RendezvousParameters(
        backend="redis", endpoint=endpoint, run_id=run_id, min_nodes=1, max_nodes=2, config=config
    )
    return elastic_make_rendezvous(parameters)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with redis_server(tmp_path_factory.mktemp("redis") / "server") as server:
        yield server


@pytest.fixture
def server(daemon: Daemon) -> Daemon:
    """The server of all tests of this module, empty."""
    with redis.Redis(port=daemon.port) as admin:
        admin.flushall()
    return daemon


class TestRedisBackend(BackendConformance, ProcessConformance):
    @pytest.fixture
    def make_backend(self, server: Daemon) -> MakeBackend:
        return partial(opened, server.endpoint)

    @pytest.fixture
    def opener(self, make_backend: MakeBackend) -> MakeBackend:
        return make_backend
