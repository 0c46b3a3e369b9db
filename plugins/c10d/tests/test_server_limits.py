"""The store's process says for how many nodes its open files last."""

from __future__ import annotations

import resource
import socket

import pytest

from elastic_rdzv_c10d.endpoint import Address
from elastic_rdzv_c10d.plugin import exposure_warning
from elastic_rdzv_c10d.server import limit_warning


@pytest.mark.parametrize(
    ("max_nodes", "hard_limit", "fit"),
    [(248, 1024, None), (249, 1024, 248), (5000, 20_000, 4992), (10**6, resource.RLIM_INFINITY, None), (1, 16, 0)],
)
def test_a_job_that_does_not_fit_is_named_with_what_it_needs(max_nodes: int, hard_limit: int, fit: int | None) -> None:
    found = limit_warning(max_nodes, hard_limit)
    assert (found is None) == (fit is None)
    if found is not None:
        assert f"enough for {fit} nodes" in found.message
        assert found.hint.endswith(f"ulimit -Hn {4 * max_nodes + 32}.")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "::1"])
def test_a_store_that_only_this_host_reaches_is_not_warned_of(host: str) -> None:
    assert exposure_warning(Address(socket.AF_INET6 if ":" in host else socket.AF_INET, host, 29400)) is None


def test_a_store_that_others_reach_without_a_token_is_warned_of_with_what_follows() -> None:
    found = exposure_warning(Address(socket.AF_INET, "192.0.2.1", 29400))
    assert found is not None
    assert "listens at 192.0.2.1:29400: every program that reaches that port" in found.message
    assert "run code" in found.message
    assert "ELASTIC_JOB_TOKEN" in found.hint
