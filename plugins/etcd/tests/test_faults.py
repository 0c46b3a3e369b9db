"""Both backends pass what the kit does to stores: lost replies, restarts with older data or none, planted records."""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from backends import opened, opened_v2
from etcd_servers import PATIENCE, Etcd, administer

from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_rdzv_etcd.backend import Keys
from elastic_testing.backend_conformance import (
    LineConformance,
    PlantConformance,
    RestartConformance,
    SilentLineConformance,
)
from elastic_testing.connections import MakeBackend
from elastic_testing.faults import Data, Keeper, LossyProxy
from elastic_testing.run_suite import Plant, PlantRow

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
class TestEtcdOverABadLine(LineConformance, SilentLineConformance):
    @pytest.fixture
    def line(self, server: Etcd) -> Iterator[LossyProxy]:
        proxy = LossyProxy("127.0.0.1", server.port)
        yield proxy
        proxy.close()

    @pytest.fixture
    def make_backend(self, line: LossyProxy, prefix: str, opener_of: Open) -> MakeBackend:
        return partial(opener_of, f"127.0.0.1:{line.port}", prefix, read_timeout="2")


def put(server: Etcd, key: bytes, record: bytes) -> bool:
    """Write past every backend; whether etcd took it, which takes no request of more than 1.5 MB."""
    try:
        administer(server, "/v3/kv/put", {"key": b64encode(key).decode(), "value": b64encode(record).decode()})
    except URLError:
        return False
    return True


@OPENERS
class TestEtcdWithAForeignWriter(PlantConformance):
    @pytest.fixture
    def make_backend(self, server: Etcd, prefix: str, opener_of: Open) -> MakeBackend:
        return partial(opener_of, server.endpoint, prefix)

    @pytest.fixture
    def plant(self, server: Etcd, prefix: str, opener_of: Open) -> Plant:
        def planted(run_id: str, index: int, record: bytes) -> bool:
            return put(server, Keys(prefix, run_id).ledger(index), record)

        def planted_v2(run_id: str, index: int, record: bytes) -> bool:
            [key] = (key for key in keys_v2(server, f"{prefix}/-{run_id}/entry") if f"/{index}-" in key)
            return put_v2(server, key, record)

        return planted if opener_of is opened else planted_v2

    @pytest.fixture
    def plant_row(self, server: Etcd, prefix: str, opener_of: Open) -> PlantRow:
        def planted(run_id: str, node_id: str, record: bytes) -> bool:
            return put(server, Keys(prefix, run_id).row(node_id), record)

        def planted_v2(run_id: str, node_id: str, record: bytes) -> bool:
            return put_v2(server, f"{prefix}/-{run_id}/row/-{node_id}", record)

        return planted if opener_of is opened else planted_v2


@OPENERS
@pytest.mark.parametrize("garbage", ["garbage", "-1"])
def test_a_heartbeat_that_is_none_hides_nobody(server: Etcd, prefix: str, opener_of: Open, garbage: str) -> None:
    with closing(opener_of(server.endpoint, prefix, "job")) as store:
        for node_id in ("node", "other"):
            store.enter(node_id, b"row")
        if opener_of is opened:
            put(server, Keys(prefix, "job").heartbeat("node"), garbage.encode())
        else:
            plant_v2(server, f"{prefix}/-job/heartbeat/-node", garbage)
        for rows in (store.roster(), store.roster(["node", "other"])):
            assert [row.node_id for row in rows if not row.broken] == ["other"]
            assert ["etcd holds" in row.broken for row in rows if row.broken] == [True]
        assert store.heartbeat("other", 1, "node").watched is None
        store.heartbeat("node", 7)
        assert [(row.node_id, row.heartbeat) for row in store.roster()] == [("node", 7), ("other", 1)]


@pytest.mark.parametrize("garbage", ["garbage", "Z2FyYmFnZQ==", "", "\xff"], ids=["text", "base64", "nothing", "latin"])
def test_a_row_that_is_none_hides_nobody_in_api_v2(server: Etcd, prefix: str, garbage: str) -> None:
    with closing(opened_v2(server.endpoint, prefix, "job")) as store:
        for node_id in ("node", "other"):
            store.enter(node_id, b"row")
        plant_v2(server, f"{prefix}/-job/row/-node", garbage)
        for rows in (store.roster(), store.roster(["node", "other"])):
            assert [(row.node_id, "etcd holds" in row.broken) for row in rows] == [("node", True), ("other", False)]


def put_v2(server: Etcd, key: str, record: bytes) -> bool:
    """The same over API v2, whose values are text: bytes that are none of it come out as something else."""
    try:
        plant_v2(server, key, record)
    except (URLError, ConnectionError):  # it may hang up in the middle of what is too long
        return False
    return True


def keys_v2(server: Etcd, directory: str) -> list[str]:
    """The names of what is in a directory of API v2."""
    with urlopen(f"http://{server.endpoint}/v2/keys{directory}", timeout=PATIENCE) as answer:
        return [str(node["key"]) for node in json.load(answer)["node"]["nodes"]]


def plant_v2(server: Etcd, key: str, value: str | bytes) -> None:
    """Write past the backend over API v2."""
    body = urlencode({"value": value}).encode()
    request = Request(f"http://{server.endpoint}/v2/keys{key}", body, method="PUT")
    urlopen(request, timeout=PATIENCE).close()
