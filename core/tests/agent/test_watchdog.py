"""Timers of torch's, as workers write them, and processes that wait in the kernel."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core.agent.watchdog import (
    TIMERS_MAX,
    Timer,
    Timers,
    Watchdog,
    WatchdogEvent,
    check,
    kernel_limit,
    pipe_path,
)
from elastic_core.errors import UsageError
from elastic_core.warden.linux import state_of

NOW, TIME_OF_DAY = 100.0, 5000.0


def line(pid: int = 7, scope: str = "s", at: float = TIME_OF_DAY + 10, sig: int = 9, **more: object) -> bytes:
    """What a FileTimerClient of torch 2.13 writes."""
    told = {"version": 1, "pid": pid, "scope_id": scope, "expiration_time": at, "signal": sig, **more}
    return json.dumps(told).encode()


def timers(*lines: bytes) -> Timers:
    found = Timers()
    for one in lines:
        found.take(one, NOW, TIME_OF_DAY)
    return found


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
def test_a_timer_expires_unless_it_is_released(lines: list[bytes], at: float, expired: list[Timer]) -> None:
    found = timers(*lines)
    assert found.take_expired(at) == expired


@pytest.mark.parametrize(
    "written",
    [
        *(b"", b"{", b"[]", b"{}", b"[" * 100_000),
        *(line(pid=0), line(pid=-1), line(at=math.inf), line(at=math.nan), line(at=10**400), line(sig=900)),
        b'{"pid": "7", "scope_id": "s", "expiration_time": 1, "signal": 9}',
    ],
)
def test_what_is_no_timer_is_ignored(written: bytes) -> None:
    found = Timers()
    with pytest.raises((ValueError, OverflowError, RecursionError)):
        found.take(written, NOW, TIME_OF_DAY)
    assert len(found) == 0


class Loop:
    """The agent's, as far as a watchdog is concerned."""

    def __init__(self, path: Path | None, limit: float | None = None, warden: int = os.getpid()) -> None:
        self.now, self.later = NOW, list[tuple[float, WatchdogEvent]]()
        self.watchdog = Watchdog(
            path, limit, lambda at, event: self.later.append((at, event)), warden, now=lambda: self.now
        )

    def write(self, *lines: bytes) -> None:
        with open(self.watchdog.environment["TORCHELASTIC_TIMER_FILE"], "wb", buffering=0) as pipe:
            for one in lines:
                pipe.write(one + b"\n")
        assert list(self.watchdog.receive()) == []


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process.pid
        process.kill()


def test_the_loop_is_woken_for_the_earliest_timer(tmp_path: Path, sleeper: int) -> None:
    loop = Loop(tmp_path / "timers")
    for seconds in (10, 20, 30):
        loop.write(line(sleeper, str(seconds), time.time() + seconds))
    loop.write(line(sleeper, "d", time.time() + 5), b"nonsense", line(at=10**400))
    assert [event for _, event in loop.later] == [WatchdogEvent.TIMERS_DUE, WatchdogEvent.TIMERS_DUE]
    assert [round(at) for at, _ in loop.later] == [110, 105]
    assert loop.watchdog.ignored == 2
    loop.now = 106.0
    assert [timer.scope for timer in loop.watchdog.take_expired()] == ["d"]
    loop.watchdog.close()
    assert not (tmp_path / "timers").exists()


def test_short_timers_within_a_long_one_do_not_multiply_the_wakings(tmp_path: Path, sleeper: int) -> None:
    loop = Loop(tmp_path / "timers")
    loop.write(line(sleeper, "epoch", time.time() + 100))
    for _ in range(3):
        loop.write(line(sleeper, "step", time.time() + 10), line(sleeper, "step", -1))
        loop.now += 11
        assert loop.watchdog.take_expired() == []
    loop.write(line(os.getpid(), "other", time.time() + 200))
    loop.now, before = 201.0, len(loop.later)
    assert [timer.scope for timer in loop.watchdog.take_expired()] == ["epoch"]
    for _ in range(3):
        assert loop.watchdog.take_expired() == []
    assert len(loop.later) == before + 1
    loop.watchdog.close()


def test_only_processes_below_the_warden_are_ended(tmp_path: Path, sleeper: int) -> None:
    loop = Loop(tmp_path / "timers", warden=sleeper)
    loop.write(line(os.getpid(), at=1.0), line(sleeper, at=1.0), line(1, at=1.0))
    assert loop.watchdog.take_expired() == []
    loop.watchdog.close()


def test_a_process_is_not_ended_for_the_timer_of_a_dead_one_of_the_same_number(
    tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(tmp_path / "timers")
    with monkeypatch.context() as patch:
        patch.setattr("elastic_core.agent.watchdog.running_process", lambda pid: (pid, 1))
        loop.write(line(sleeper, "of the dead", 1.0), line(os.getpid(), "of the dead", 1.0))
    loop.write(line(sleeper, "of the living", 2.0))
    assert [timer.scope for timer in loop.watchdog.take_expired()] == ["of the living"]
    loop.watchdog.close()


def test_timers_of_processes_that_are_gone_make_room(tmp_path: Path, sleeper: int) -> None:
    loop = Loop(tmp_path / "timers")
    gone = subprocess.Popen(["true"])
    gone.wait()
    later = time.time() + 100
    for first in range(0, TIMERS_MAX + 100, 100):
        loop.write(*(line(gone.pid, str(number), later) for number in range(first, first + 100)))
    loop.write(line(sleeper, "alive", later))
    loop.now = 1000.0
    assert [timer.scope for timer in loop.watchdog.take_expired()] == ["alive"]
    loop.watchdog.close()


def test_a_pipe_that_nobody_reads_any_more_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "timers")
    named = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": str(tmp_path / "timers")}
    check(named)
    loop = Loop(tmp_path / "timers")
    with pytest.raises(UsageError, match="is read by another agent"):
        Loop(tmp_path / "timers")
    with pytest.raises(UsageError, match="is read by another agent"):
        check(named)
    loop.watchdog.close()
    (tmp_path / "timers").write_text("somebody's notes")
    with pytest.raises(UsageError, match="is not a named pipe"):
        Loop(tmp_path / "timers")
    assert (tmp_path / "timers").read_text() == "somebody's notes"
    with pytest.raises(UsageError, match="cannot be made: No such file"):
        Loop(tmp_path / "none" / "timers")


IN_THE_KERNEL = """
import ctypes, os
libc = ctypes.CDLL(None)
if libc.vfork() == 0:  # whose caller waits in the kernel until the child is gone
    libc.pause()
"""


def test_a_process_that_waits_in_the_kernel_for_too_long_is_found() -> None:
    loop = Loop(None, limit=5.0)
    with subprocess.Popen([sys.executable, "-c", IN_THE_KERNEL], start_new_session=True) as process:
        while state_of(process.pid) != "D":
            assert process.poll() is None
            time.sleep(0.01)
        assert loop.watchdog.stuck([process.pid, os.getpid()]) == {}
        loop.now += 5.0
        assert loop.watchdog.stuck([process.pid, os.getpid()]) == {process.pid: 5.0}
        assert loop.later == [(at, WatchdogEvent.STATES_DUE) for at in (101.0, 101.0, 106.0)]
        os.killpg(process.pid, signal.SIGKILL)
    assert loop.watchdog.stuck([process.pid]) == {}


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
