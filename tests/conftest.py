"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rig import Rig, over

# These need what only their tox environments install; naming the folder runs them all the same.
collect_ignore = ["frameworks", "installed", "schedulers"]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Starts agents. Whatever the test did to them, none of their processes may outlive them."""
    rig = Rig(tmp_path)
    yield rig
    left = rig.close()
    assert not left, "processes that outlived their agents: " + "; ".join(left)


@pytest.fixture(params=["file", "c10d", pytest.param("redis", marks=pytest.mark.variant)])
def rendezvous(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """The flags with which several nodes meet, over a directory, over c10d and over Redis."""
    if request.param == "redis":
        from redis_servers import redis_server  # where core is tested alone, there is no such backend

        with redis_server(tmp_path / "redis") as server:
            yield ["--rdzv_backend=redis", f"--rdzv_endpoint={server.endpoint}", "--rdzv_id=job"]
    else:
        yield over(request.param, tmp_path)


@pytest.fixture
def file_rendezvous(tmp_path: Path) -> list[str]:
    """The same over the backend that needs no torch, where the backend is not the point."""
    return over("file", tmp_path)
