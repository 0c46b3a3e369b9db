"""Fixtures of the backends' tests: one real server for all tests that do not harm it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from etcd_servers import Etcd, running

_prefixes = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """A server that no test harms; see ``prefix`` for what keeps tests apart."""
    with running(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Etcd]:
    """A server of this test's own."""
    with running(tmp_path) as etcd:
        yield etcd


@pytest.fixture
def prefix() -> str:
    """Return the prefix of this test's keys."""
    return f"/test/{next(_prefixes)}"
