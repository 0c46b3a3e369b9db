"""The warden's wait for a fork server, with a clock of the test's. Its forks are in elastic-warmstart's tests."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from elastic_core.warden.linux import signal_group
from elastic_core.warden.spawn import Child, Kind
from elastic_core.warden.starter import IMPORT_MAX_SECONDS, StarterClient

FOREVER: dict[str, Any] = {
    "imports": ["torch"],
    "order": {},
    "entry": "json:loads",
    "roots": [],
    "python": ["sh", "-c", "sleep 1000"],
    "program": [],
    "env": {"PATH": os.environ["PATH"]},
}
"""A fork server that never gets to the end of its imports."""


class View:
    """A client, the time, and the events that it has sent."""

    def __init__(self) -> None:
        self.now = 100.0
        self.told: list[tuple[str, dict[str, object]]] = []
        self.client = StarterClient(lambda event, **facts: self.told.append((event, facts)), lambda: self.now)

    def die(self, *, closing: bool = False) -> None:
        """Kill the fork server, and let it be known."""
        fork_server = self.client.process
        assert fork_server is not None
        assert fork_server.pid is not None
        signal_group(fork_server.pid, signal.SIGKILL)
        os.waitpid(fork_server.pid, 0)
        fork_server.read_start()  # the end of its pipe
        self.client.handle_death(fork_server, -signal.SIGKILL, closing=closing)


@pytest.fixture
def view() -> Iterator[View]:
    view = View()
    view.client.start(FOREVER)
    yield view
    if view.client.process is not None:
        view.die(closing=True)


def child(kind: Kind = Kind.WORKER) -> Child:
    return Child(kind, {"tag": 1, "descriptors": []}, [])


def test_a_worker_waits_for_the_import_so_long_and_no_longer(view: View) -> None:
    worker = child()
    view.client.request_fork(worker)
    assert view.client.next_deadline() == 100 + IMPORT_MAX_SECONDS
    view.now += IMPORT_MAX_SECONDS - 1
    assert view.client.take_released() == []
    assert not view.client.refusal()
    view.now += 1
    assert view.client.take_released() == [worker]
    assert view.client.refusal()
    assert view.client.next_deadline() == math.inf
    view.client.request_fork(child())
    assert view.client.next_deadline() <= view.now, "nobody waits for it once more"


def test_no_worker_waits_for_a_fork_server_that_has_failed(view: View) -> None:
    worker = child()
    view.client.request_fork(worker)
    view.die()
    assert view.told == [("starter_died", {"how": "was killed by SIGKILL"})]
    assert view.client.take_released() == []
    view.die()
    assert view.told[1:] == [
        ("starter_failed", {"reason": "it died twice while it imported torch (it was killed by SIGKILL)"})
    ]
    assert view.client.process is None
    assert view.client.next_deadline() == 0
    assert view.client.take_released() == [worker]


def test_one_with_other_settings_replaces_it(view: View) -> None:
    first = view.client.process
    assert first is not None
    assert view.client.start(dict(FOREVER)) is None
    assert view.client.process is first, "these settings are the same"
    second = view.client.start({**FOREVER, "env": {**FOREVER["env"], "OMP_NUM_THREADS": "2"}})
    assert view.client.process is second is not first
    assert first.pid is not None
    assert os.waitpid(first.pid, 0)[1] == signal.SIGKILL
    first.read_start()
    assert view.client.handle_death(first, -signal.SIGKILL, closing=False) is None
    assert view.client.process is second
    assert view.told == []


def test_at_the_end_a_dead_fork_server_is_not_made_again(view: View) -> None:
    view.die(closing=True)
    assert view.client.process is None
    assert view.told == []


def test_a_stop_dismisses_the_workers_that_wait_and_not_the_services(view: View) -> None:
    worker, service = child(), child(Kind.SERVICE)
    for waiting in (worker, service):
        view.client.request_fork(waiting)
    assert view.client.drop_waiting_workers() == [worker]
    assert view.client.waiting == [service]
