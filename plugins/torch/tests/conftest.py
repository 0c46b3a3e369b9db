"""Fixtures of several tests."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from elastic_core.agent.worker_channels import Reports
from elastic_core.worker.channel import CONTROL_VARIABLE


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """An agent on a thread of its own; the worker's end of the channel."""
    reports = Reports(lambda _instant, _event: None)
    worker = reports.open(1)
    monkeypatch.setenv(CONTROL_VARIABLE, str(worker.fileno()))
    over = os.pipe()

    waits_for: list[Any] = [reports, over[0]]

    def serve() -> None:
        while over[0] not in select.select(waits_for, [], [])[0]:
            reports.receive()

    thread = threading.Thread(target=serve)
    thread.start()
    yield worker
    os.close(over[1])
    thread.join()
    os.close(over[0])
    worker.close()
    reports.close()
