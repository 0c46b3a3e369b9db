"""API v2 passes the suite on a real server, over python-etcd."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import pytest
from backends import opened_v2
from etcd_servers import Etcd

from elastic_testing.backend_conformance import BackendConformance, ProcessConformance
from elastic_testing.connections import MakeBackend


class TestEtcdV2Backend(BackendConformance, ProcessConformance):
    @pytest.fixture
    def make_backend(self, server: Etcd, prefix: str) -> MakeBackend:
        return partial(opened_v2, server.endpoint, prefix)

    @pytest.fixture
    def opener(self, make_backend: MakeBackend) -> MakeBackend:
        return make_backend


def test_a_row_that_is_removed_while_rows_are_listed_is_listed_with_its_heartbeat_or_not_at_all(
    server: Etcd, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(opened_v2(server.endpoint, prefix, "job")) as store, closing(store.connect()) as node:
        node.enter("node", b"row")
        node.heartbeat("node", 7)
        look = store._list

        def removed_after_the_first_look(key: str) -> object:
            found = look(key)
            monkeypatch.setattr(store, "_list", look)
            node.remove("node")
            return found

        monkeypatch.setattr(store, "_list", removed_after_the_first_look)
        assert [row.heartbeat for row in store.roster()] in ([], [7])
