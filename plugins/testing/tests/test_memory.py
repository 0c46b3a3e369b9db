"""The server in memory passes every suite that threads can pass."""

from __future__ import annotations

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_testing.backend_conformance import (
    BackendConformance,
    HeldLineConformance,
    LineConformance,
    RestartConformance,
)
from elastic_testing.connections import MakeBackend
from elastic_testing.faults import BadLine, LossyCalls
from elastic_testing.memory import MemoryServer


class TestMemory(BackendConformance, RestartConformance):
    @pytest.fixture
    def keeper(self) -> MemoryServer:
        return MemoryServer()

    @pytest.fixture
    def make_backend(self, keeper: MemoryServer) -> MakeBackend:
        return keeper.open


class TestMemoryOverABadLine(LineConformance, HeldLineConformance):
    @pytest.fixture
    def line(self) -> BadLine:
        return LossyCalls()

    @pytest.fixture
    def make_backend(self, line: LossyCalls) -> MakeBackend:
        return line.through(MemoryServer().open)


def test_a_stopped_server_lets_nobody_in() -> None:
    server = MemoryServer()
    store = server.open("job")
    server.stop()
    for use in (store.connect, store.roster, lambda: server.open("another")):
        with pytest.raises(RendezvousConnectionError):
            use()
    server.start()
    assert store.connect().roster() == []
