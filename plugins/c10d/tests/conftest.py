"""What the backend's tests share: an endpoint of their own, and how its connections are made."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture
def port() -> int:
    """A port of 127.0.0.1 that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
