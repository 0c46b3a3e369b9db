"""The socket of an agent and the command's side of it, over a store in memory."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.errors import RendezvousConnectionError, RendezvousStateError, StoreLostError
from elastic_core.events import Event
from elastic_core.monitors import RunningRound, WorkerView
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.progress import Progress
from elastic_core.progress_table import ProgressTable
from elastic_core.rendezvous.backend import ORIGIN, Cursor, Link, RendezvousBackend
from elastic_operate import job_file
from elastic_operate.host_jobs import (
    AgentStore,
    EndedAgentError,
    HostJob,
    SilentAgentError,
    host_jobs,
    with_own_workers,
)
from elastic_operate.job_file import CommandServer, JobFile, describe_agent
from elastic_operate.job_view import JobStatus, NodeStatus, WorkerStatus
from elastic_operate.plugin import Course

BYTES = bytes(range(256))
PATIENCE = 30.0


def wait_until(happened: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if happened():
            return True
        time.sleep(0.01)
    return False


class Agent:
    """The part of an agent that commands see."""

    def __init__(self) -> None:
        self.memory, self.said = MemoryStore(), "waits for nothing\n"
        self.published: list[Event] = []
        self.connect: Callable[[], RendezvousBackend] | None = lambda: LocalBackend(self.memory)
        self.course = Course()

    def describe(self) -> str:
        if not self.said:
            raise RuntimeError("in the middle of a change")
        return self.said

    def server(self, file: JobFile) -> CommandServer:
        return CommandServer(file, self.describe, self.course, self.connect, self.published.append, threading.Event())

    @contextmanager
    def served(self) -> Iterator[HostJob]:
        config = RunConfig(program=Program(ProgramKind.SCRIPT, "train.py"), rdzv_id="job")
        file = describe_agent(config, "run", "node", None)
        server = self.server(file)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            assert wait_until(lambda: bool(host_jobs()))
            [job] = host_jobs()
            yield job
        finally:
            server.close()
            thread.join(PATIENCE)
        assert not thread.is_alive()
        assert host_jobs() == []


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "elastic"


@pytest.fixture
def agent() -> Agent:
    return Agent()


def opened(job: HostJob) -> AgentStore:
    store = job.connect()
    store.open()
    return store


def test_a_command_sees_the_store_as_its_agent_does(agent: Agent) -> None:
    near = LocalBackend(agent.memory)
    near.enter("a", BYTES)
    near.append(ORIGIN, Link(1, "one"), BYTES)
    with agent.served() as job, closing(opened(job)) as far:
        assert (far.state, far.embedded, far.hosting) == (agent.said, False, False)
        assert far.roster() == near.roster()
        assert far.roster(["b"]) == []
        assert (far.read(1), far.read(2)) == (BYTES, None)
        assert far.enter("b", BYTES) == 2
        assert far.roster(["b"]) == near.roster(["b"])
        cursor = far.wait(Cursor(), roster=True, timeout=0)
        assert cursor == near.wait(Cursor(), roster=True, timeout=0)
        assert far.wait(cursor, roster=True, timeout=0.01) == cursor
        far.remove("b")
        assert [row.node_id for row in near.roster()] == ["a"]


def running(*nodes: NodeStatus, round: int = 2) -> JobStatus:
    return JobStatus(
        job="job",
        run="run",
        state="running",
        why="",
        round=round,
        world_size=2,
        age_s=1.0,
        restarts=0,
        max_restarts=3,
        failures=(),
        host_losses={},
        nodes=nodes,
        store_s=0.0,
    )


WROTE = (WorkerStatus(2, None), WorkerStatus(3, None))
"""The workers of a node as its row tells them, which it wrote before they had started."""


def test_a_command_sees_the_workers_of_this_host_as_they_are_now(agent: Agent) -> None:
    table = ProgressTable(now=lambda: 7.5)
    views = [WorkerView(2, 0, 4711, None, False), WorkerView(3, 1, 4712, None, False)]
    agent.course.round = RunningRound(2, "run", ["other", "node"], Path(), table, look=lambda: views)
    table.begin(2)
    table.observe(2, Progress(step=40), at=7.0)
    node = NodeStatus(
        node_id="node", host="h", ranks=(2, 3), phase="running", leads=False, leaving=False, workers=WROTE
    )
    other, now = replace(node, node_id="other"), (WorkerStatus(2, 4711, 40, 0.5), WorkerStatus(3, 4712))
    with agent.served() as job:
        for seen, shown in (
            (node, now),
            (replace(node, phase="starting"), now),
            (replace(node, phase="stopped", workers=()), ()),
        ):
            assert with_own_workers(running(other, seen), job).nodes == (other, replace(seen, workers=shown))
        assert with_own_workers(running(other, node, round=3), job).nodes == (other, node), "it has no such round yet"
        agent.course.round.closed.set()
        assert with_own_workers(running(other, node), job).nodes == (other, node)


def test_the_request_of_a_command_that_is_gone_is_taken_back(agent: Agent) -> None:
    with agent.served() as job:
        store = opened(job)
        store.enter("drain-1", b"x")
        assert LocalBackend(agent.memory).roster()
        store.close()
        assert wait_until(lambda: not LocalBackend(agent.memory).roster())


def test_a_command_cannot_remove_the_row_of_a_node(agent: Agent) -> None:
    LocalBackend(agent.memory).enter("a", b"x")
    with agent.served() as job:
        with closing(opened(job)) as store, pytest.raises(EndedAgentError):
            store.remove("a")
        with closing(opened(job)) as store:
            assert [row.node_id for row in store.roster()] == ["a"]


@pytest.mark.parametrize("error", [RendezvousConnectionError, RendezvousStateError, StoreLostError])
def test_an_error_of_the_store_reaches_the_command(agent: Agent, error: type[RendezvousConnectionError]) -> None:
    def fail() -> RendezvousBackend:
        raise error("The store is away.", hint="Wait.")

    agent.connect = fail
    with agent.served() as job, pytest.raises(error) as raised:
        opened(job)
    assert type(raised.value) is error
    assert (raised.value.message, raised.value.hint) == ("The store is away.", "Wait.")


def test_a_job_without_a_store_shows_the_state_of_its_agent(agent: Agent) -> None:
    agent.connect = None
    with agent.served() as job, closing(job.connect()) as store:
        assert (store.has_store, store.state) == (False, agent.said)


def test_a_state_that_cannot_be_described_now_is_left_out(agent: Agent) -> None:
    agent.said = ""
    with agent.served() as job, closing(opened(job)) as store:
        assert (store.state, store.roster()) == ("", [])


def test_a_malformed_request_ends_only_its_own_connection(agent: Agent) -> None:
    with agent.served() as job:
        for text in (b"\n", b"not JSON\n", b'["erase"]\n', b'["read"]\n', b'{"a": 1}\n'):
            with closing(opened(job)) as store:
                store._socket.sendall(text)
                with pytest.raises(EndedAgentError):
                    store.roster()
        with closing(opened(job)) as store:
            assert store.roster() == []


def test_one_command_too_many_is_turned_away_and_the_next_is_served(agent: Agent) -> None:
    with agent.served() as job:
        connected = [job.connect() for _ in range(job_file.CLIENTS_MAX)]
        with pytest.raises(SilentAgentError):
            job.connect()
        connected.pop().close()
        assert wait_until(lambda: answers(job))
        for store in connected:
            store.close()


def answers(job: HostJob) -> bool:
    try:
        job.connect().close()
    except SilentAgentError:
        return False
    return True


def test_an_agent_that_does_not_answer_is_passed_over_for_another_one(agent: Agent) -> None:
    with agent.served() as job:
        silent = replace(job.newest, node="nobody")
        with closing(HostJob((silent, job.newest)).connect()) as store:
            assert store.state == agent.said
        with pytest.raises(SilentAgentError, match=f"The agent of job 'job' with pid {os.getpid()} does not answer."):
            HostJob((silent,)).connect()


AS_STRANGER = """
import os, socket
os.setuid(54321)
with socket.socket(socket.AF_UNIX) as client:
    client.settimeout(30)
    client.connect("node.sock")
    print(client.recv(100))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_user_gets_no_answer(agent: Agent, runtime: Path) -> None:
    """Even where the directory lets them reach the socket."""
    command = [sys.executable, "-c", AS_STRANGER]
    with agent.served():
        runtime.chmod(0o755)
        (runtime / "node.sock").chmod(0o777)
        asked = subprocess.run(command, cwd=runtime, capture_output=True, text=True, check=True)
    assert asked.stdout == "b''\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_root_gets_no_answer_from_the_agent_of_another_user(
    agent: Agent, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with agent.served(), monkeypatch.context() as changed, socket.socket(socket.AF_UNIX) as client:
        changed.setattr(os, "geteuid", lambda: 54321)
        client.connect(str(runtime / "node.sock"))
        assert client.recv(100) == b""


def test_an_agent_renews_its_file_and_keeps_another_where_it_was_removed(
    agent: Agent, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a logout, or by a cleaner of temporary files."""
    monkeypatch.setattr(job_file, "RENEW_AFTER", struct.pack("ll", 0, 10_000))
    with agent.served() as job:
        for path in (runtime / "node.json", runtime / "node.sock"):
            os.utime(path, (0, 0))
        assert wait_until(lambda: all(path.stat().st_mtime for path in runtime.iterdir()))
        for remove in ((runtime / "node.json").unlink, (runtime / "node.sock").unlink, partial(shutil.rmtree, runtime)):
            remove()
            assert wait_until(lambda: host_jobs() == [job] and answers(job))
    assert [path.name for path in runtime.iterdir()] == ["last"]


def test_without_a_directory_one_event_says_so(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc")
    monkeypatch.setenv("TMPDIR", "/proc")
    config = RunConfig(program=Program(ProgramKind.SCRIPT, "train.py"), rdzv_id="job")
    file = describe_agent(config, "run", "node", None)
    agent.server(file).run()
    [event] = agent.published
    assert event.message.startswith("commands on this host do not find this agent, whose file cannot be kept: /proc/")
