"""How long the warden waits for a fork server, with a clock of the test's. What it does is in
``test_client_forks.py``.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_core.warden.fork_server import IMPORT_MAX_SECONDS, SUCCESSOR_DELAYS_SECONDS, ForkServerClient
from elastic_core.warden.linux import become_subreaper, signal_group
from elastic_core.warden.spawn import Child, Kind

FOREVER: dict[str, Any] = {
    "modules": ["torch"],
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
        self.client = ForkServerClient(lambda event, **facts: self.told.append((event, facts)), lambda: self.now)

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
    assert not view.client.is_late()
    view.now += 1
    assert view.client.take_released() == [worker]
    assert view.client.is_late()
    assert view.client.next_deadline() == math.inf
    view.client.request_fork(child())
    assert view.client.next_deadline() <= view.now, "nobody waits for it once more"


def test_nobody_waits_for_a_fork_server_that_will_not_be(view: View) -> None:
    worker = child()
    view.client.request_fork(worker)
    view.die()
    assert view.told == [("fork_server_died", {"how": "was killed by SIGKILL"})]
    assert view.client.take_released() == []
    view.die()
    assert view.told[1:] == [
        ("fork_server_failed", {"reason": "it died twice while it imported torch (it was killed by SIGKILL)"})
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


class Forks(View):
    """A client of a fork server that imports ``json``, and whose successors import ``csv`` too."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        become_subreaper()
        (script := folder / "train.py").write_text("")
        settings = {"modules": ["json"], "later": ["csv"], "env": {"PATH": os.environ["PATH"]}}
        self.children = [self.client.start({**settings, "python": [sys.executable, "-u"], "program": [str(script)]})]

    def wait_until_ready(self) -> None:
        """Read the fork server's messages until it forks."""
        while not self.client.is_ready:
            select.select(self.client.channels, [], [])
            self.client.receive()

    def fork_successor(self) -> Child:
        """Request a successor, and wait until it has sent its message."""
        self.now += SUCCESSOR_DELAYS_SECONDS[0]
        successor = self.client.fork_successor()
        assert successor is not None
        assert self.client._successor_channel is not None
        select.select([self.client._successor_channel], [], [])
        self.children.append(successor)
        return successor

    def read_pid(self, successor: Child) -> None:
        """Read the pid of the successor, which the fork server reports."""
        assert successor.pipe is not None
        while successor.pid is None:
            select.select([successor.pipe], [], [])
            successor.read_start()

    def reap(self, child: Child) -> None:
        """Kill a fork server, and wait for its end."""
        assert child.pid is not None
        signal_group(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
        child.close_pipe()
        self.children.remove(child)

    def close(self) -> None:
        """End all of them."""
        for child in filter(None, self.children[:]):
            self.reap(child)
        if self.client.process is not None:
            self.client.handle_death(self.client.process, -signal.SIGKILL, closing=True)


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    found = Forks(tmp_path)
    yield found
    found.close()


def test_a_successor_whose_pid_is_not_yet_read_does_not_become_the_fork_server(forks: Forks) -> None:
    forks.wait_until_ready()
    first, successor = forks.client.process, forks.fork_successor()
    forks.client.receive_from_successor()
    assert forks.client.process is first, "its message waits"
    forks.read_pid(successor)
    forks.client.receive_from_successor()
    assert forks.client.process is successor
    (event, facts) = forks.told[-1]
    assert (event, facts["pid"]) == ("fork_server_grown", successor.pid)


def test_a_successor_that_replaces_the_next_fork_server_is_not_followed_by_its_like(forks: Forks) -> None:
    """The fork server dies while its successor imports; the one that is started instead has no successor yet."""
    forks.wait_until_ready()
    first, successor = forks.client.process, forks.fork_successor()
    assert first is not None
    forks.read_pid(successor)
    forks.reap(first)
    second = forks.client.handle_death(first, -signal.SIGKILL, closing=False)
    assert second is not None
    forks.children.append(second)
    forks.client.receive_from_successor()
    assert forks.client.process is successor
    assert forks.client.next_deadline() == forks.now + SUCCESSOR_DELAYS_SECONDS[1], "the next one is to learn"
