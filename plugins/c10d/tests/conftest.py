"""Fixtures of the backend's tests: an endpoint of their own, and its connections."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture
def port() -> int:
    """A port of 127.0.0.1 without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
