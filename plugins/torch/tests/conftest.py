"""Fixtures of several tests."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_core import AgentEnd
from elastic_core.agent.worker_channels import Reports
from elastic_core.monitors import RunningRound
from elastic_core.worker.channel import CONTROL_VARIABLE
from elastic_torch.memory.agent import Snapshots


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """An agent on a thread of its own; the worker's end of the channel."""
    reports, plugin = Reports(lambda _instant, _event: None), Snapshots()
    running = RunningRound(1, "run", ["n"], Path())
    plugin.elastic_round_starts(running)
    reports.obey = running.callbacks.obey
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
    plugin.elastic_agent_ends(AgentEnd("n", lambda event: None, is_last=lambda: False))
