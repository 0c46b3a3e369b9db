"""Both backends pass what the kit does to stores: lost replies, restarts with older data or none, planted records."""

from __future__ import annotations

import shutil
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from urllib.error import URLError

import pytest
from backends import opened, opened_v2
from etcd_servers import Etcd, administer

from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.testing.backend_conformance import LineConformance, PlantConformance, RestartConformance
from elastic_core.testing.connections import MakeBackend
from elastic_core.testing.faults import Data, Keeper, LossyProxy
from elastic_core.testing.run_suite import Plant
from elastic_rdzv_etcd.records import Keys

Open = Callable[..., RendezvousBackend]

OPENERS = pytest.mark.parametrize("opener_of", [opened, opened_v2], ids=["v3", "v2"])


class Operator(Keeper):
    """Stops and starts a server, and changes its data in between."""

    def __init__(self, server: Etcd) -> None:
        self.server, self.kept = server, server.folder / "copy"

    def copy(self) -> None:
        self.server.stop()
        shutil.rmtree(self.kept, ignore_errors=True)
        shutil.copytree(self.server.data, self.kept)
        self.server.start().serving()

    def restart(self, data: Data) -> None:
        self.server.stop()
        if data is not Data.KEPT:
            self.server.forget()
        if data is Data.COPY:
            shutil.copytree(self.kept, self.server.data)
        self.server.start().serving()


@OPENERS
class TestEtcdRestarted(RestartConformance):
    @pytest.fixture
    def make_backend(self, own_server: Etcd, opener_of: Open) -> MakeBackend:
        return partial(opener_of, own_server.endpoint, "/elastic")

    @pytest.fixture
    def keeper(self, own_server: Etcd) -> Keeper:
        return Operator(own_server)


@OPENERS
class TestEtcdOverABadLine(LineConformance):
    @pytest.fixture
    def line(self, server: Etcd) -> Iterator[LossyProxy]:
        proxy = LossyProxy("127.0.0.1", server.port)
        yield proxy
        proxy.close()

    @pytest.fixture
    def make_backend(self, line: LossyProxy, prefix: str, opener_of: Open) -> MakeBackend:
        return partial(opener_of, f"127.0.0.1:{line.port}", prefix, read_timeout="2")


class TestEtcdWithAForeignWriter(PlantConformance):
    @pytest.fixture
    def make_backend(self, server: Etcd, prefix: str) -> MakeBackend:
        return partial(opened, server.endpoint, prefix)

    @pytest.fixture
    def plant(self, server: Etcd, prefix: str) -> Plant:
        def planted(run_id: str, index: int, record: bytes) -> bool:
            key, value = (b64encode(part).decode() for part in (Keys(prefix, run_id).ledger(index), record))
            try:
                administer(server, "/v3/kv/put", {"key": key, "value": value})
            except URLError:  # etcd takes no request of more than 1.5 MB
                return False
            return True

        return planted
