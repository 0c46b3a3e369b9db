"""A server that takes too few clients for the job is named before it refuses nodes, and the limit when it does."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from redis_servers import opened, redis_server

from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous.options import RendezvousParameters
from elastic_rdzv_redis.backend import capacity_warning
from elastic_rdzv_redis.plugin import elastic_make_rendezvous


@pytest.mark.parametrize(
    ("clients", "max_nodes", "warned"),
    [
        ("# Clients\r\nconnected_clients:1\r\nmaxclients:10000\r\n", 2500, False),
        ("# Clients\r\nconnected_clients:2\r\nmaxclients:10000\r\n", 2500, True),
        ("# Clients\r\nconnected_clients:1\r\nmaxclients:10000\r\n", 2501, True),
        ("# Clients\r\nconnected_clients:1\r\n", 9999, False),
        ("", 9999, False),
    ],
)
def test_four_connections_a_node_and_all_other_clients_must_fit(clients: str, max_nodes: int, warned: bool) -> None:
    assert (capacity_warning(clients, max_nodes, "there:6379") is not None) == warned


def test_the_first_connection_warns_of_a_server_that_is_too_small_and_a_refused_one_names_the_limit(
    tmp_path: Path,
) -> None:
    with redis_server(tmp_path / "redis", "maxclients 9") as server, ExitStack() as stack:
        backend = elastic_make_rendezvous(
            RendezvousParameters(backend="redis", endpoint=server.endpoint, run_id="j", min_nodes=1, max_nodes=3)
        )
        stack.callback(backend.close)
        [warning] = backend.warnings
        assert "takes 9 clients (maxclients)" in warning.message
        assert "Raise maxclients" in warning.hint
        for _ in range(8):
            stack.callback(opened(server.endpoint).close)
        with pytest.raises(RendezvousConnectionError) as refused:
            opened(server.endpoint)
        assert "max number of clients reached" in refused.value.message
        assert "maxclients" in (refused.value.hint or "")
