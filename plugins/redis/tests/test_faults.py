"""The rest of the contract: bad lines, restarts, planted values."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import redis
from redis_servers import Daemon, opened, redis_server

from elastic_rdzv_redis.backend import keys_of
from elastic_testing.backend_conformance import (
    LineConformance,
    PlantConformance,
    RestartConformance,
    SilentLineConformance,
)
from elastic_testing.connections import MakeBackend
from elastic_testing.faults import Data, Keeper, LossyProxy
from elastic_testing.run_suite import Plant, PlantRow


class RedisKeeper(Keeper):
    """Restarts a server; its data is in one folder."""

    def __init__(self, server: Daemon) -> None:
        self._server = server
        self._copied = server.folder.parent / "copied"

    def copy(self) -> None:
        """Copy the data, which the server has written by the time that it answers."""
        shutil.rmtree(self._copied, ignore_errors=True)
        self._copied.mkdir()
        for path in self._server.data:
            shutil.copytree(path, self._copied / path.name) if path.is_dir() else shutil.copy(path, self._copied)

    def restart(self, data: Data) -> None:
        """Kill the server and start it again."""
        self._server.kill()
        if data is not Data.KEPT:
            self._server.forget()
        if data is Data.COPY:
            shutil.copytree(self._copied, self._server.folder, dirs_exist_ok=True)
        self._server.start()


class TestRedisBackendWithAForeignWriter(PlantConformance):
    @pytest.fixture
    def make_backend(self, server: Daemon) -> MakeBackend:
        return partial(opened, server.endpoint)

    @pytest.fixture
    def plant(self, admin: redis.Redis) -> Plant:
        def planted(run_id: str, index: int, record: bytes) -> bool:
            admin.hset(keys_of("elastic", run_id)[0], str(index), record)
            return True

        return planted

    @pytest.fixture
    def plant_row(self, admin: redis.Redis) -> PlantRow:
        def planted(run_id: str, node_id: str, record: bytes) -> bool:
            admin.hset(keys_of("elastic", run_id)[1], f"n:{node_id}", record)
            return True

        return planted


@pytest.mark.usefixtures("silence")
class TestRedisBackendOverABadLine(LineConformance, SilentLineConformance):
    @pytest.fixture
    def line(self, server: Daemon) -> Iterator[LossyProxy]:
        proxy = LossyProxy("127.0.0.1", server.port)
        yield proxy
        proxy.close()

    @pytest.fixture
    def make_backend(self, line: LossyProxy) -> MakeBackend:
        return partial(opened, f"127.0.0.1:{line.port}")


class TestRedisBackendThatIsRestarted(RestartConformance):
    @pytest.fixture
    def own(self, tmp_path: Path) -> Iterator[Daemon]:
        with redis_server(tmp_path / "own", durable=True) as server:
            yield server

    @pytest.fixture
    def keeper(self, own: Daemon) -> Keeper:
        return RedisKeeper(own)

    @pytest.fixture
    def make_backend(self, own: Daemon) -> MakeBackend:
        return partial(opened, own.endpoint)
