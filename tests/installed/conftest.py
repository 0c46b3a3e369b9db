"""Tests of two wheels in a clean environment; `tox -e wheels` and `tox -e wheels-torch` make such environments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_servers import redis_server


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[list[str]]:
    """The flags with which two nodes meet over a real server."""
    with redis_server(tmp_path / "redis") as server:
        yield ["--nnodes=2", "--rdzv_backend=redis", f"--rdzv_endpoint={server.endpoint}", "--rdzv_id=job"]
