"""The store in memory passes the suite with threads; its hooks ask for nothing."""

from __future__ import annotations

import pytest

from elastic_core.plugins import local_backend
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.rendezvous.backend import ORIGIN, Link
from elastic_core.rendezvous.options import RendezvousParameters
from elastic_testing.backend_conformance import BackendConformance
from elastic_testing.connections import MakeBackend


class TestLocalBackend(BackendConformance):
    @pytest.fixture
    def make_backend(self) -> MakeBackend:
        jobs: dict[str, MemoryStore] = {}
        return lambda run_id: LocalBackend(jobs.setdefault(run_id, MemoryStore()))


def test_the_hooks_ask_for_no_endpoint_and_serve_one_node() -> None:
    options = local_backend.elastic_rendezvous_options()
    assert (options.endpoint, options.endpoint_required, options.conf, options.single_node) == ("", False, {}, True)


def test_every_agent_has_a_store_of_its_own() -> None:
    params = RendezvousParameters(backend="local", endpoint="", run_id="job", min_nodes=1, max_nodes=1)
    one, other = (local_backend.elastic_make_rendezvous(params) for _ in range(2))
    assert one.append(ORIGIN, Link(1, "first"), b"1")
    assert other.read(1) is None
