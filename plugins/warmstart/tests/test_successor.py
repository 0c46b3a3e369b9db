"""The successor of a fork server, which imports more and replaces it, with a clock of the test's."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core.warden.linux import become_subreaper, signal_group
from elastic_core.warden.spawn import Child
from elastic_core.warden.starter import StarterClient
from elastic_warmstart.starter import SUCCESSOR_DELAYS_SECONDS, fork_server


class Forks:
    """A client of a fork server that imports ``json``, and whose successors import ``csv`` too."""

    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.told: list[tuple[str, dict[str, object]]] = []
        self.client = StarterClient(lambda event, **facts: self.told.append((event, facts)), lambda: self.now)
        become_subreaper()
        (script := folder / "train.py").write_text("")
        python, program, env = [sys.executable, "-u"], [str(script)], {"PATH": os.environ["PATH"]}
        starter = fork_server(("json",), later=("csv",), python=python, program=program, env=env)
        self.children = [self.client.start(starter.request())]

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
        assert successor.channel is not None
        select.select([successor.channel], [], [])
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
    assert (event, facts["pid"]) == ("starter_grown", successor.pid)


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


def test_a_node_that_waits_for_all_imports_has_the_successor_forked_at_once_and_only_the_first(forks: Forks) -> None:
    forks.client.grow()
    forks.wait_until_ready()
    assert forks.client.next_deadline() <= forks.now, "without the pause that leaves the CPUs to workers"
    forks.now -= SUCCESSOR_DELAYS_SECONDS[0]  # which the helper would wait
    successor = forks.fork_successor()
    forks.read_pid(successor)
    forks.client.receive_from_successor()
    forks.client.grow()
    assert forks.client.next_deadline() > forks.now, "the next one learns from workers that have run"
