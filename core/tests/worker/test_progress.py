"""``elastic.report``, with a real channel."""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import elastic_core
from elastic_core.worker import progress
from elastic_core.worker.channel import CONTROL_VARIABLE, KIND
from elastic_core.worker.progress import PERIOD


class Worker:
    """A worker with a clock of its own, and the agent's end of its channel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.agent, self.end = socket.socketpair(*KIND)
        self.agent.settimeout(0)
        self.time = 100.0
        monkeypatch.setenv(CONTROL_VARIABLE, str(self.end.fileno()))
        monkeypatch.setattr(progress, "_process", 0)
        monkeypatch.setattr(progress, "_sent_at", -math.inf)
        monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: self.time))

    def reports(self, **values: object) -> bool:
        self.time += 1.0
        return progress.report(**values)  # type: ignore[arg-type]  # also what it refuses

    def heard(self) -> dict[str, float]:
        packet: dict[str, float] = json.loads(self.agent.recv(4096))
        return packet


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    worker = Worker(monkeypatch)
    with worker.agent, worker.end:
        yield worker


def test_a_report_says_what_it_was_given(worker: Worker) -> None:
    assert worker.reports(step=3, loss=0.5)
    assert worker.heard() == {"type": "progress", "step": 3, "loss": 0.5}


def test_nothing_is_sent_soon_after(worker: Worker) -> None:
    assert worker.reports(step=1)
    worker.time -= 1.0 - PERIOD / 2
    assert not worker.reports(step=2)
    assert worker.reports(step=3)
    assert [worker.heard()["step"] for _ in range(2)] == [1, 3]


def test_other_kinds_of_numbers(worker: Worker) -> None:
    class Tensor:
        def __index__(self) -> int:
            return 7

        def __float__(self) -> float:
            return math.nan

    assert worker.reports(samples=Tensor(), loss=Tensor(), epoch=1)
    packet = worker.heard()
    assert (packet["samples"], packet["epoch"]) == (7, 1.0)
    assert math.isnan(packet["loss"])


@pytest.mark.parametrize(
    "values", [{}, {"step": 1.5}, {"step": -1}, {"loss": "high"}, {"epoch": -0.5}, {"step": 2**53}, {"loss": 10**400}]
)
def test_a_value_that_is_no_number_is_refused(worker: Worker, values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"^report\(step="):
        worker.reports(**values)


def test_forks_do_not_report(worker: Worker) -> None:
    assert worker.reports(step=1)
    pid = os.fork()
    if pid == 0:
        os._exit(int(worker.reports(step=2)))
    assert os.waitpid(pid, 0)[1] == 0


def test_an_agent_that_does_not_read_stops_nothing(worker: Worker) -> None:
    while worker.reports(step=1):
        pass


def test_without_an_agent_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONTROL_VARIABLE, raising=False)
    assert not elastic_core.report(step=1)
