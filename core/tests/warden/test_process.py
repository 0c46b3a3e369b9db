"""The warden's loop under orders of events that no test can bring about with real processes."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import closing

import pytest

from elastic_core.host.processes import Process, running_process
from elastic_core.warden import process
from elastic_core.warden.channel import Channel
from elastic_core.warden.process import WardenProcess
from elastic_core.warden.spawn import Child, Kind
from elastic_core.warden.stop import STUCK_AFTER_SECONDS
from elastic_testing.race import PATIENCE


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """The agent's channel, and the warden's."""
    ours, theirs = map(Channel, socket.socketpair())
    with closing(ours), closing(theirs):
        yield ours, theirs


@pytest.fixture
def warden(ends: tuple[Channel, Channel]) -> Iterator[WardenProcess]:
    """The warden's loop, in this process, which does not run."""
    handler = signal.getsignal(signal.SIGCHLD)
    yield WardenProcess(ends[1])
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, handler)


@pytest.fixture
def stubborn() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ignores SIGTERM and leads its group, as a worker does."""
    program = ["sh", "-c", "trap '' TERM; echo; read forever"]
    with subprocess.Popen(program, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        yield started
        started.kill()


@pytest.mark.parametrize("killed", [None, {}], ids=["first search", "later search"])
def test_a_worker_whose_pid_is_read_after_the_search_for_processes_is_killed_too(
    warden: WardenProcess,
    stubborn: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    killed: dict[Process, float] | None,
) -> None:
    """It was forked after the search. Nothing would wake the warden any more, and the stop would not complete."""
    child = Child(Kind.WORKER, {"tag": 1, "fences": 0}, [])
    child.forked = True
    child.pipe, report = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    warden._starting.append(child)
    stop = warden._stop(signal.SIGTERM, grace=0.0)
    stop.killed = killed
    worker = running_process(stubborn.pid)
    assert worker is not None

    def descendants(root: int, without: Collection[int] = ()) -> list[Process]:
        if child.pid is None:
            os.write(report, b"pid %d\nok %d 0\n" % (stubborn.pid, stubborn.pid))
            return []
        return [worker]

    monkeypatch.setattr(process, "descendants", descendants)
    warden._kill_all(stop, time.monotonic())
    assert child.started
    assert stubborn.wait(PATIENCE) == -signal.SIGKILL
    assert (stop.killed or {}).keys() == {worker}  # so it is reported if it does not die


def test_a_fence_that_goes_off_while_another_still_kills_is_the_same(
    warden: WardenProcess, ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one waits for a fork that may still be made."""
    monkeypatch.setattr(process, "descendants", lambda root, without: [])
    monkeypatch.setattr(warden, "_reap", lambda: None)  # this process has other children than the warden's
    child = Child(Kind.WORKER, {"tag": 1, "fences": 0}, [])
    child.forked, child.requested_at = True, math.inf
    child.pipe, report = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    warden._starting.append(child)
    for _ in range(2):
        warden._fence_at = 0.0
        warden._run_deadlines()
    assert ends[0].receive() == []
    os.close(report)  # it will not be made
    warden._read_start(child)
    warden._run_deadlines()
    assert (ends[0].receive(), warden._fences) == ([({"event": "fenced"}, [])], 1)


def test_a_process_that_survives_sigkill_is_reported_once(
    warden: WardenProcess,
    ends: tuple[Channel, Channel],
    stubborn: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits in the kernel, for a disk or a device. The agent withdraws its node then (rule L3)."""
    worker = running_process(stubborn.pid)
    assert worker is not None
    monkeypatch.setattr(process, "descendants", lambda root, without: [worker])
    stop = warden._stop(signal.SIGTERM, grace=0.0)
    stop.killed = {worker: 100.0}  # it got SIGKILL then
    for now in (100.0 + STUCK_AFTER_SECONDS - 1.0, 100.0 + STUCK_AFTER_SECONDS, 100.0 + 2 * STUCK_AFTER_SECONDS):
        warden._kill_all(stop, now)
    ((told, _),) = ends[0].receive()
    assert (told["event"], told["pid"], told["name"]) == ("stuck", stubborn.pid, "sh")
