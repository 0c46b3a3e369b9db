"""A server for all tests of a module, emptied before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from redis_servers import HOUR, Daemon, redis_server

from elastic_rdzv_redis import backend


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with redis_server(tmp_path_factory.mktemp("redis") / "server") as server:
        yield server


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters look again only when a bell rings, so that one which is not heard is missed."""
    monkeypatch.setattr(backend, "LONGEST_SLEEP", HOUR)


@pytest.fixture
def admin(daemon: Daemon) -> Iterator[redis.Redis]:
    """A client that may do everything."""
    with redis.Redis(port=daemon.port) as client:
        yield client


@pytest.fixture
def server(daemon: Daemon, admin: redis.Redis) -> Daemon:
    admin.flushall()
    return daemon
