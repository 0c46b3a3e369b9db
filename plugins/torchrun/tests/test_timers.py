"""Timers of torch's, as workers write them, and processes that wait in the kernel."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.errors import UsageError
from elastic_core.events import Event
from elastic_core.host.processes import running_process, state_of
from elastic_core.monitors import Assignment, RankFailed, RunningRound, WorkerView
from elastic_torchrun.timers import TIMERS_MAX, Timer, Timers, Watchdog, kernel_limit, parse_timer, pipe_path

NOW, TIME_OF_DAY = 100.0, 5000.0
PATIENCE = 30.0


def line(pid: int = 7, scope: str = "s", at: float = TIME_OF_DAY + 10, sig: int = 9, **more: object) -> bytes:
    """Return a line as a FileTimerClient of torch 2.13 writes it."""
    told = {"version": 1, "pid": pid, "scope_id": scope, "expiration_time": at, "signal": sig, **more}
    return json.dumps(told).encode()


@pytest.mark.parametrize(
    ("lines", "at", "expired"),
    [
        ([], 1000.0, []),
        ([line()], 109.9, []),
        ([line()], 110.0, [Timer(7, "s", 110.0, 9)]),
        ([line(), line(at=-1)], 1000.0, []),
        ([line(), line(at=TIME_OF_DAY + 60)], 120.0, []),
        ([line(scope="other", at=-1), line()], 120.0, [Timer(7, "s", 110.0, 9)]),
        ([line(), line(scope="t", at=TIME_OF_DAY + 5, sig=15)], 120.0, [Timer(7, "t", 105.0, 15)]),
        ([line(), line(scope="t", at=TIME_OF_DAY + 5, sig=0)], 120.0, [Timer(7, "s", 110.0, 9)]),
        ([line(sig=-1)], 120.0, [Timer(7, "s", 110.0, 0)]),
        ([line(), line(pid=8)], 120.0, [Timer(7, "s", 110.0, 9), Timer(8, "s", 110.0, 9)]),
    ],
    ids=["none", "early", "due", "released", "renewed", "another", "first", "unsignalled", "no signal", "two"],
)
def test_a_timer_expires_unless_it_is_released(
    monkeypatch: pytest.MonkeyPatch, lines: list[bytes], at: float, expired: list[Timer]
) -> None:
    monkeypatch.setattr("elastic_torchrun.timers.running_process", lambda pid: (pid, 1))
    timers = Timers()
    for one in lines:
        timer = parse_timer(one, NOW, TIME_OF_DAY)
        timers.take((timer.pid, 1), timer)
    assert timers.take_expired(at) == {(timer.pid, 1): timer for timer in expired}
    assert timers.take_expired(at) == {}


@pytest.mark.parametrize(
    "written",
    [
        *(b"", b"{", b"[]", b"{}", b"[" * 100_000),
        *(line(pid=0), line(pid=-1), line(at=math.inf), line(at=math.nan), line(at=10**400), line(sig=900)),
        b'{"pid": "7", "scope_id": "s", "expiration_time": 1, "signal": 9}',
    ],
)
def test_a_malformed_timer_is_ignored(written: bytes) -> None:
    with pytest.raises((ValueError, OverflowError, RecursionError)):
        parse_timer(written, NOW, TIME_OF_DAY)


def test_the_next_look_is_when_a_timer_expires() -> None:
    timers = Timers()
    assert timers.due(100.0) == math.inf
    timers.take((7, 1), Timer(7, "s", 105.0, 9))
    timers.take((7, 1), Timer(7, "t", 110.0, 9))
    assert (timers.due(100.0), timers.due(106.0)) == (5.0, 0.0)


@pytest.mark.parametrize(("count", "expired"), [(TIMERS_MAX, {(7, 1)}), (TIMERS_MAX + 1, set())])
def test_a_process_has_a_limited_number_of_timers(count: int, expired: set[tuple[int, int]]) -> None:
    timers = Timers()
    for number in range(1, count + 1):
        timers.take((7, 1), Timer(7, str(number), 110.0 if number == count else 200.0, 9))
    assert timers.take_expired(110.0).keys() == expired


PROGRAM = Program(ProgramKind.SCRIPT, "train.py")


class Node:
    """A watchdog, a round of these processes, what became of it, and a clock."""

    def __init__(self, folder: Path, *pids: int, **environ: str) -> None:
        self.now = NOW
        self.published: list[Event] = []
        self.posted: list[object] = []
        self.environ = environ or {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
        self.watchdog = Watchdog(self.environ, lambda: self.now)
        self.watchdog.elastic_configure(RunConfig(program=PROGRAM))
        self.views = tuple(WorkerView(rank, rank, pid, None, False) for rank, pid in enumerate(pids))
        directory, look = folder / "round_1", lambda: self.views
        self.round = RunningRound(
            1, "run", ["a"], directory, post=self.posted.append, publish=self.published.append, look=look
        )
        self.watchdog.start = lambda: None  # type: ignore[method-assign]  # the test looks
        self.watchdog.elastic_round_starts(self.round)

    @property
    def expired(self) -> list[object]:
        """The scopes of the timers that have expired so far."""
        return [event.fields["scope"] for event in self.published if event.name == "timer_expired"]

    def write(self, *lines: bytes) -> None:
        told = self.watchdog.elastic_worker_environment(PROGRAM, cast("Assignment", None))
        with open(told["TORCHELASTIC_TIMER_FILE"], "wb", buffering=0) as pipe:
            for one in lines:
                pipe.write(one + b"\n")
        self.watchdog.look()


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process.pid
        process.kill()


def test_a_process_gets_the_signal_of_its_timer_and_its_end_is_explained(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        node = Node(tmp_path)
        for seconds in (10, 20, 30):
            node.write(line(process.pid, str(seconds), time.time() + seconds, sig=signal.SIGUSR1))
        node.write(line(process.pid, "d", time.time() + 5, sig=signal.SIGUSR1), b"nonsense", line(at=10**400))
        assert node.expired == []
        node.now = 106.0
        node.watchdog.look()
        assert process.wait(PATIENCE) == -signal.SIGUSR1
    assert node.expired == ["d"]
    assert node.round.signals[process.pid].why == "its timer 'd' expired"
    node.watchdog.elastic_run_ends()
    assert not (tmp_path / "timers").exists()


def test_a_timer_that_is_released_or_renewed_does_not_expire(tmp_path: Path, sleeper: int) -> None:
    node = Node(tmp_path)
    node.write(line(sleeper, "epoch", time.time() + 100, sig=0))
    for _ in range(3):
        node.write(line(sleeper, "step", time.time() + 10), line(sleeper, "step", -1))
        node.now += 11
        node.watchdog.look()
    assert node.expired == []
    node.now = 201.0
    node.watchdog.look()
    assert node.expired == ["epoch"]
    assert node.round.signals == {}, "the timer names no signal"


def test_only_processes_below_the_agent_are_ended(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(line(os.getpid(), at=1.0), line(os.getppid(), at=1.0), line(1, at=1.0))
    assert node.expired == []


def test_a_process_is_not_ended_for_the_timer_of_a_dead_one_of_the_same_number(
    tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("elastic_torchrun.timers.running_process", lambda pid: (pid, 1))
        node.write(line(sleeper, "of the dead", time.time() + 100, sig=0))
    node.write(line(sleeper, "of the living", time.time() + 100, sig=0))
    node.now = 1000.0
    node.watchdog.look()
    assert node.expired == ["of the living"]


def test_timers_of_processes_that_are_gone_are_dropped(sleeper: int) -> None:
    timers, alive = Timers(), running_process(sleeper)
    assert alive is not None
    with subprocess.Popen(["true"]) as gone:
        timers.take((gone.pid, 1), Timer(gone.pid, "gone", 110.0, 0))
    timers.take(alive, Timer(sleeper, "alive", 110.0, 0))
    assert timers.take_expired(110.0).keys() == {alive}


def test_a_pipe_that_nobody_reads_any_more_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "timers")
    named = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": str(tmp_path / "timers")}
    node = Node(tmp_path, **named)
    with pytest.raises(UsageError, match="is read by another agent"):
        Node(tmp_path, **named)
    node.watchdog.elastic_run_ends()
    (tmp_path / "timers").write_text("somebody's notes")
    with pytest.raises(UsageError, match="is not a named pipe"):
        Node(tmp_path, **named)
    assert (tmp_path / "timers").read_text() == "somebody's notes"
    with pytest.raises(UsageError, match="cannot be made"):
        Node(tmp_path, **{**named, "TORCHELASTIC_TIMER_FILE": str(tmp_path / "none" / "timers")})


def test_timers_are_read_and_the_pipe_is_removed_by_the_thread(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        watchdog = Watchdog({"TORCHELASTIC_ENABLE_FILE_TIMER": "1"})
        watchdog.elastic_configure(RunConfig(program=PROGRAM))
        watchdog.elastic_round_starts(Node(tmp_path, TORCHELASTIC_ENABLE_FILE_TIMER="0").round)
        told = watchdog.elastic_worker_environment(PROGRAM, cast("Assignment", None))
        with open(told["TORCHELASTIC_TIMER_FILE"], "wb", buffering=0) as pipe:
            pipe.write(line(process.pid, "s", time.time() + 0.2) + b"\n")
        assert process.wait(PATIENCE) == -signal.SIGKILL
    watchdog.elastic_run_ends()
    for thread in [one for one in threading.enumerate() if one.name == "elastic-watchdog"]:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert not os.path.exists(told["TORCHELASTIC_TIMER_FILE"])


def test_another_run_of_the_agent_has_a_pipe_of_its_own(tmp_path: Path, sleeper: int) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    node = Node(first)
    node.write(line(sleeper, "of the first", time.time() + 100, sig=0))
    shutil.rmtree(first)
    node.round = replace(node.round, directory=second / "round_1")
    node.watchdog.elastic_round_starts(node.round)
    node.write(line(sleeper, "of the second", time.time() + 200, sig=0))
    node.now = 1000.0
    node.watchdog.look()
    assert node.expired == ["of the second"]


def test_a_pipe_that_cannot_be_made_is_refused_before_anything_starts(tmp_path: Path) -> None:
    named = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": str(tmp_path / "none" / "timers")}
    with pytest.raises(UsageError, match="cannot be made"):
        Watchdog(named).elastic_configure(RunConfig(program=PROGRAM))


IN_THE_KERNEL = """
import ctypes, os
libc = ctypes.CDLL(None)
if libc.vfork() == 0:  # whose caller waits in the kernel until the child is gone
    libc.pause()
"""


def test_a_worker_that_waits_in_the_kernel_for_too_long_fails(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", IN_THE_KERNEL], start_new_session=True) as process:
        node = Node(tmp_path, os.getpid(), process.pid, TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT="5")
        while state_of(process.pid) != "D":
            assert process.poll() is None
            time.sleep(0.01)
        node.watchdog.look()
        assert node.posted == []
        node.now += 5.0
        node.watchdog.look()
        [failed] = node.posted
        assert isinstance(failed, RankFailed)
        assert (failed.rank, failed.kill, failed.name) == (1, False, "")
        assert re.fullmatch("has waited in the kernel, in .*, for 5 s", failed.message)
        os.killpg(process.pid, signal.SIGKILL)
    node.now += 5.0
    node.watchdog.look()
    assert node.posted == [failed]


@pytest.mark.parametrize(("text", "limit"), [("", None), ("0", None), ("-1", None), ("2.5", 2.5)])
def test_the_limit_for_the_kernel_is_a_number_of_seconds(text: str, limit: float | None) -> None:
    assert kernel_limit({"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": text}) == limit


@pytest.mark.parametrize("text", ["soon", "nan"])
def test_another_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"TIMEOUT={text} is no number of seconds"):
        kernel_limit({"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": text})


def test_timers_are_for_who_asks_for_them(tmp_path: Path) -> None:
    assert pipe_path({"TORCHELASTIC_TIMER_FILE": "/x"}, tmp_path) is None
    assert pipe_path({"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}, tmp_path) == tmp_path / "timers"
    asked = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": "/x"}
    assert pipe_path(asked, tmp_path) == Path("/x")
