"""Settings of the protocol for nodes that run in real time."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def long_suspicion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspect a member late: where the machine pauses for a second, its round would be halted and get a new number."""
    monkeypatch.setattr("elastic_core.protocol.failure_detector.SUSPICION_SECONDS", 30.0)
