"""Memory files that workers leave with their agent over their channels."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core import AgentEnd
from elastic_core.agent.worker_channels import NotUnderstood, Reports
from elastic_core.errors import ResourceError
from elastic_core.monitors import RunningRound
from elastic_core.warden.channel import close_all
from elastic_core.worker.channel import CONTROL_VARIABLE, KIND
from elastic_torch.memory import fd_store
from elastic_torch.memory.agent import Snapshots
from elastic_torch.memory.fd_store import MOST_HELD, FdStore, is_memory


class Node:
    """An agent that answers on a thread of its own, and the channel of the worker that this process is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reports, self.plugin = Reports(lambda _instant, _event: None), Snapshots()
        self.heard: list[object] = []
        self._monkeypatch = monkeypatch
        self._worker: socket.socket | None = None
        self._ended = threading.Event()
        self.lock = threading.Lock()
        self.next_round()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def next_round(self) -> None:
        with self.lock:
            if self._worker is not None:
                self._worker.close()
                self.reports.clear()
            running = RunningRound(1, "run", ["n"], Path())
            self.plugin.elastic_round_starts(running)
            self.reports.obey = running.callbacks.obey
            self._worker = self.reports.open(1)
        self._monkeypatch.setenv(CONTROL_VARIABLE, str(self._worker.fileno()))

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        assert self._worker is not None
        self._worker.close()
        self.reports.close()
        self.plugin.elastic_agent_ends(AgentEnd("n", lambda event: None, is_last=lambda: False))

    def _serve(self) -> None:
        while not self._ended.wait(0.001):
            with self.lock:  # a worker may have its answer before what it said is in the list
                self.heard += self.reports.receive()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    node = Node(monkeypatch)
    yield node
    node.close()


def memory(content: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, content)
    return fd


def leave(name: str, content: bytes) -> None:
    """Hold it, and forget it."""
    fd = memory(content)
    assert fd_store.hold(name, fd)
    os.close(fd)


def found(name: str) -> bytes | None:
    if (fd := fd_store.held(name)) is None:
        return None
    content = os.pread(fd, 100, 0)
    assert not os.get_inheritable(fd)
    os.close(fd)
    return content


def fill(sock: socket.socket) -> None:
    """Leave no room in it."""
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(b"x")


def descriptors() -> list[str]:
    gc.collect()  # other tests may have left some
    return sorted(os.listdir("/proc/self/fd"))


def test_a_descriptor_that_is_left_is_there_for_the_workers_of_the_next_round(node: Node) -> None:
    leave("state/0", b"step 7")
    node.next_round()
    assert found("state/0") == b"step 7"
    assert found("state/1") is None


def test_it_is_the_same_memory_and_not_a_copy(node: Node) -> None:
    fd = memory(b"before")
    assert fd_store.hold("x", fd)
    os.pwrite(fd, b"after!", 0)
    os.close(fd)
    assert found("x") == b"after!"


def test_a_name_that_is_taken_gets_the_new_one(node: Node) -> None:
    leave("x", b"1")
    with node.lock:  # an answer is there before what it came over is closed
        before = len(descriptors())
    leave("x", b"2")
    assert found("x") == b"2"
    with node.lock:
        assert len(descriptors()) == before


def test_a_released_descriptor_is_gone(node: Node) -> None:
    leave("x", b"1")
    assert fd_store.release("x")
    assert not fd_store.release("x")
    assert found("x") is None


def test_only_memory_files_are_kept(node: Node) -> None:
    with tempfile.TemporaryFile() as file, socket.socket() as sock:
        for fd in (file.fileno(), sock.fileno(), 0):
            assert not is_memory(fd)
            with pytest.raises(ResourceError, match=r"does not keep 'x': only memory files \(memfd_create\) are kept"):
                fd_store.hold("x", fd)
    assert found("x") is None


def test_no_more_than_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_torch.memory.fd_store.MOST_HELD", 1)
    fd_store = FdStore()

    def ask(name: str) -> dict[str, object]:
        ours, theirs = socket.socketpair(*KIND)
        with ours:
            given = [theirs.detach(), memory(b"")]
            assert fd_store.obey({"type": "hold", "name": name}, given) == ""
            close_all(given)
            answer: dict[str, object] = json.loads(ours.recv(1000))
            return answer

    before = descriptors()
    assert [ask("a")["done"], ask("a")["done"]] == [True, True]
    assert ask("b") == {"done": False, "why": "1 are kept already"}
    fd_store.close()
    assert descriptors() == before
    assert 0 < MOST_HELD < 1024


def test_a_failure_of_the_agent_is_not_taken_for_nothing_kept(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    leave("x", b"1")
    store = node.plugin.store
    assert store is not None
    with monkeypatch.context() as broken:
        broken.setattr(store, "held", None)
        with pytest.raises(ResourceError, match=r"cannot say what it keeps of the training: 'held' failed with Type"):
            fd_store.held("x")
    with node.lock:
        [said] = node.heard
    assert isinstance(said, NotUnderstood)
    assert said.why.startswith("its request 'held' failed: TypeError(")
    assert found("x") == b"1"  # the agent goes on to serve


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "ä", "a\n"])
def test_a_name_that_makes_no_sense_is_refused_and_said(node: Node, name: str) -> None:
    fd = memory(b"")
    assert not fd_store.hold(name, fd, timeout=60)
    os.close(fd)
    with node.lock:
        [said] = node.heard
    assert isinstance(said, NotUnderstood)
    assert said.why == f"its request 'hold' has the invalid name {name[:40]!r}"


def test_an_answer_can_only_go_to_a_local_socket_of_packets() -> None:
    fd_store, before = FdStore(), descriptors()
    reading, writing = os.pipe()
    request = {"type": "held", "name": "x"}
    assert fd_store.obey(request, []) == "its request 'held' brings no socket for the answer"
    assert fd_store.obey(request, [writing]) == "the first descriptor of its request is no socket"
    other = socket.socket().detach()
    assert fd_store.obey(request, [other]) == "the first descriptor of its request is not a local socket of packets"
    os.close(reading)
    assert descriptors() == before


def test_a_worker_that_does_not_read_its_answer_holds_nobody_up() -> None:
    fd_store = FdStore()
    ours, theirs = socket.socketpair(*KIND)
    with ours, theirs:
        fill(theirs)
        assert fd_store.obey({"type": "held", "name": "x"}, [os.dup(theirs.fileno())]) == ""


def test_an_agent_that_does_not_answer_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(*KIND)
    monkeypatch.setenv(CONTROL_VARIABLE, str(theirs.fileno()))
    with ours, theirs:
        before = descriptors()
        assert fd_store.held("x", timeout=0.01) is None
        fill(theirs)
        assert fd_store.held("x", timeout=0.01) is None
        assert descriptors() == before


def test_without_an_agent_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONTROL_VARIABLE, raising=False)
    fd = memory(b"")
    assert not fd_store.hold("x", fd)
    assert fd_store.held("x") is None
    assert not fd_store.release("x")
    os.close(fd)


def test_the_agents_end_is_the_end_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors()
    node = Node(monkeypatch)
    leave("x", b"1")
    node.close()
    assert descriptors() == before
