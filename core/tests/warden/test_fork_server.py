"""How long the warden waits for a fork server, with a clock of the test's. What it does is in
``test_warden_warm.py``."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator

import pytest

from elastic_core.warden.fork_server import IMPORT_WITHIN, Nursery
from elastic_core.warden.linux import signal_group
from elastic_core.warden.spawn import Child, Kind

FOREVER = {
    "modules": ["torch"],
    "whole": True,
    "python": ["sh", "-c", "sleep 1000"],
    "program": [],
    "env": {"PATH": os.environ["PATH"]},
}
"""A fork server that never gets to the end of its imports."""


class LeaderView:
    """A nursery, the time, and what it has told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.told: list[tuple[str, dict[str, object]]] = []
        self.nursery = Nursery(lambda event, **facts: self.told.append((event, facts)), lambda: self.now)

    def die(self, *, closing: bool = False) -> None:
        """Kill the fork server, and let it be known."""
        fork_server = self.nursery.fork_server
        assert fork_server is not None
        assert fork_server.pid is not None
        signal_group(fork_server.pid, signal.SIGKILL)
        os.waitpid(fork_server.pid, 0)
        fork_server.hear()  # the end of its pipe
        self.nursery.died(fork_server, -signal.SIGKILL, closing=closing)


@pytest.fixture
def view() -> Iterator[LeaderView]:
    view = LeaderView()
    view.nursery.begin(FOREVER)
    yield view
    if view.nursery.fork_server is not None:
        view.die(closing=True)


def child(kind: Kind = Kind.WORKER) -> Child:
    return Child(kind, {"tag": 1, "descriptors": []}, [])


def test_a_worker_waits_for_the_import_so_long_and_no_longer(view: LeaderView) -> None:
    worker = child()
    view.nursery.ask(worker)
    assert view.nursery.due() == 100 + IMPORT_WITHIN
    view.now += IMPORT_WITHIN - 1
    assert view.nursery.released() == []
    assert not view.nursery.late()
    view.now += 1
    assert view.nursery.released() == [worker]
    assert view.nursery.late()
    assert view.nursery.due() == math.inf
    view.nursery.ask(child())
    assert view.nursery.due() <= view.now, "nobody waits for it once more"


def test_nobody_waits_for_a_fork_server_that_will_not_be(view: LeaderView) -> None:
    worker = child()
    view.nursery.ask(worker)
    view.die()
    assert view.told == [("fork_server_died", {"how": "was killed by SIGKILL"})]
    assert view.nursery.released() == []
    view.die()
    assert view.told[1:] == [
        ("fork_server_failed", {"reason": "it died twice while it imported torch (it was killed by SIGKILL)"})
    ]
    assert view.nursery.fork_server is None
    assert view.nursery.due() == 0
    assert view.nursery.released() == [worker]


def test_at_the_end_a_dead_fork_server_is_not_made_again(view: LeaderView) -> None:
    view.die(closing=True)
    assert view.nursery.fork_server is None
    assert view.told == []


def test_a_stop_dismisses_the_workers_that_wait_and_not_the_services(view: LeaderView) -> None:
    worker, service = child(), child(Kind.SERVICE)
    for waiting in (worker, service):
        view.nursery.ask(waiting)
    assert view.nursery.dismiss() == [worker]
    assert view.nursery.waiting == [service]
