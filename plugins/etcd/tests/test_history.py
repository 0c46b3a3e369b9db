"""An etcd that keeps all of its history is named before the heartbeats of a job have filled it."""

from __future__ import annotations

from pathlib import Path

import pytest
from etcd_servers import asked, running

from elastic_core.rendezvous.backend import StoreWarning
from elastic_core.rendezvous.options import RendezvousParameters
from elastic_rdzv_etcd.backend import YOUNG, EtcdBackend, days_until_full, history_warning
from elastic_rdzv_etcd.plugin import elastic_make_rendezvous


def test_sixteen_thousand_nodes_fill_the_default_quota_in_minutes() -> None:
    assert 20 < days_until_full(16_000, 2.0, 0) * 24 * 60 < 25


@pytest.mark.parametrize(
    ("revision", "compacted", "used", "max_nodes", "warned"),
    [
        (YOUNG, False, 0, 64, True),
        (YOUNG - 1, False, 0, 64, False),
        (10**9, True, 0, 64, False),
        (10**9, False, 0, 2, False),
        (10**9, False, 2 << 30, 2, True),
    ],
)
def test_a_warning_depends_on_the_size_of_the_history(
    revision: int, compacted: bool, used: int, max_nodes: int, warned: bool
) -> None:
    found = history_warning(
        revision=revision, compacted=compacted, used=used, max_nodes=max_nodes, beat_interval=2.0, where="there"
    )
    assert (found is not None) == warned


def test_the_first_connection_warns_until_the_history_is_compacted(tmp_path: Path) -> None:
    def warnings() -> tuple[StoreWarning, ...]:
        backend = elastic_make_rendezvous(
            RendezvousParameters(backend="etcd", endpoint=server.endpoint, run_id="j", min_nodes=1, max_nodes=64)
        )
        assert isinstance(backend, EtcdBackend)
        backend.close()
        return backend.warnings

    with running(tmp_path) as server:
        assert warnings() == ()
        puts = [{"request_put": {"key": "aw=="}}]
        for _ in range(YOUNG + 2):
            asked(server, "/v3/kv/txn", {"success": puts})
        [warning] = warnings()
        assert "--auto-compaction-retention=1h" in warning.hint
        asked(server, "/v3/kv/compaction", {"revision": str(YOUNG)})
        assert warnings() == ()
