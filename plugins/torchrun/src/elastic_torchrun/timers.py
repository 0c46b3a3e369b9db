"""The two limits for a hung worker that torch's agent has, each requested by an environment variable.

With ``TORCHELASTIC_ENABLE_FILE_TIMER=1``, the ``FileTimerClient`` of ``torch.distributed.elastic.timer`` writes timers,
one JSON object per line, into the named pipe ``TORCHELASTIC_TIMER_FILE``. The agent sends a process whose timer expires
the signal that the timer names. ``TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT`` is the time in seconds that a worker may
wait in the kernel, where no signal reaches it (state D of proc(5)), as for a dead network file system.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from elastic_core import Assignment, hookimpl
from elastic_core.config import Program, RunConfig
from elastic_core.errors import UsageError
from elastic_core.events import Event, Field, Level
from elastic_core.exit_codes import signal_name
from elastic_core.monitors import RunningRound
from elastic_core.threads import PatientThread
from elastic_core.warden import Process, descendants, running_process, state_of, waits_in

ENABLE = "TORCHELASTIC_ENABLE_FILE_TIMER"
PIPE = "TORCHELASTIC_TIMER_FILE"
KERNEL_LIMIT = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
LOOK_SECONDS = 1.0  # between two looks at the states of workers
TIMERS_MAX = 4096
"""Timers that are kept. Beyond that, those of processes that have ended are dropped, and then new ones."""
READ_MAX = 65536  # bytes that are read at once, the capacity of a pipe


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that is set."""

    pid: int
    scope: str
    at: float  # when it expires, by the monotonic clock
    signum: int  # 0 to send no signal


class Timers:
    """The timers that are set, by process and scope: a newer one replaces an older one."""

    def __init__(self) -> None:
        self._timers: dict[tuple[int, str], Timer] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def take(self, line: bytes, now: float, time_of_day: float) -> Timer | None:
        """Set or release the timer that one line of the pipe names; return the timer if it is set.

        The line is JSON with ``pid``, ``scope_id``, ``expiration_time`` (seconds since the epoch, negative to
        release) and ``signal``. ``now`` is by the monotonic clock.

        Raises:
            ValueError, OverflowError, RecursionError: It is no such line.
        """
        match json.loads(line):
            case {
                "pid": int(pid),
                "scope_id": str(scope),
                "expiration_time": float() | int() as at,
                "signal": int(sig),
            }:
                if pid <= 0 or not math.isfinite(at) or sig >= signal.NSIG:
                    raise ValueError(f"pid {pid}, expiration_time {at} or signal {sig} is out of range")
                if at < 0:
                    self._timers.pop((pid, scope), None)
                    return None
                timer = Timer(pid, scope, now + at - time_of_day, max(0, sig))
                self._timers[pid, scope] = timer
                return timer
        raise ValueError("it lacks pid, scope_id, expiration_time or signal")

    def drop(self, pids: Iterable[int]) -> None:
        """Forget the timers of processes."""
        gone = set(pids)
        self._timers = {key: timer for key, timer in self._timers.items() if timer.pid not in gone}

    def take_expired(self, now: float) -> list[Timer]:
        """Remove the timers of all processes of which one has expired; return the first expired timer of each."""
        first: dict[int, Timer] = {}
        for timer in sorted(self._timers.values(), key=lambda timer: (timer.signum == 0, timer.at)):
            if timer.at <= now:
                first.setdefault(timer.pid, timer)
        self.drop(first)
        return list(first.values())

    def next_at(self) -> float:
        """Return when the next timer expires; infinity for none."""
        return min((timer.at for timer in self._timers.values()), default=math.inf)

    def pids(self) -> set[int]:
        """Return the processes that have set timers."""
        return {timer.pid for timer in self._timers.values()}


class Watchdog:
    """The plugin: sends the signals of expired timers, and fails workers that wait in the kernel for too long."""

    def __init__(self, environ: Mapping[str, str] = os.environ, now: Callable[[], float] = time.monotonic) -> None:
        self._environ, self._now = environ, now
        self._limit: float | None = None
        self._path: Path | None = None
        self._pipe: int | None = None
        self._round: RunningRound | None = None
        self._timers = Timers()
        self._processes: dict[int, Process] = {}
        """The processes that have set timers, since a pid may pass from a dead process to a new one."""
        self._part = b""
        self._waits_since: dict[int, float] = {}
        self._started = False
        self._lock = threading.Lock()  # held by whatever reads the pipe, or changes it
        self._closing = threading.Event()
        self.ignored = 0  # how many lines were invalid

    @hookimpl
    def elastic_configure(self, config: RunConfig) -> None:
        """Check the settings before the node joins, since other nodes stop their workers for a new node.

        Raises:
            UsageError: The limit is no number, or the named pipe is another agent's, no pipe, or cannot be made.
        """
        self._limit = kernel_limit(self._environ)
        if self._environ.get(ENABLE) != "1" or not (path := self._environ.get(PIPE)):
            return
        if os.path.exists(path):
            _check_abandoned(Path(path))
        elif not os.access(os.path.dirname(path) or ".", os.W_OK):
            raise UsageError(f"{PIPE}={path} cannot be made there.", hint=f"Unset {PIPE}, and a place is chosen.")

    @hookimpl
    def elastic_round_starts(self, round: RunningRound) -> None:
        """Watch a round; make a pipe before the first of a run."""
        self._round, self._waits_since = round, {}
        path = pipe_path(self._environ, round.directory.parent)
        if not self._started and (path is not None or self._limit is not None):
            self._started = True
            self.start()
        if path is not None and path != self._path:
            with self._lock:
                self._remove_pipe()
                self._timers, self._processes, self._part = Timers(), {}, b""
                self._path, self._pipe = path, _open(path)

    def start(self) -> None:
        """Start the thread that looks."""
        PatientThread(target=self._run, name="elastic-watchdog", daemon=True).start()

    @hookimpl
    def elastic_worker_environment(self, program: Program, assignment: Assignment) -> Mapping[str, str]:
        """Return the path of the pipe."""
        return {} if self._path is None else {PIPE: str(self._path)}

    @hookimpl
    def elastic_run_ends(self) -> None:
        """Remove the pipe; the thread ends within a second."""
        self._closing.set()
        with self._lock:
            self._remove_pipe()

    def _remove_pipe(self) -> None:
        if self._path is not None and self._pipe is not None:
            with contextlib.suppress(OSError):  # its folder may be gone
                self._path.unlink(missing_ok=True)
            os.close(self._pipe)
        self._path = self._pipe = None

    def due(self) -> float:
        """Return in how many seconds to look again, at the latest."""
        return max(0.0, self._timers.next_at() - self._now())

    def _run(self) -> None:
        """Look whenever a timer is written or expires, and at the workers' states every second."""
        while not self._closing.is_set():
            with contextlib.suppress(OSError, ValueError):  # closed just now
                pipe = self._pipe
                select.select([] if pipe is None else [pipe], [], [], min(LOOK_SECONDS, self.due()))
                self.look()

    def look(self) -> None:
        """Read timers, send the signals of those that have expired, and look at the states of the workers."""
        with self._lock:
            self._read()
            expired = self._take_expired()
        if (round := self._round) is None:
            return
        for timer in expired:
            name = signal_name(timer.signum) if timer.signum else "no signal"
            scope = timer.scope[:200]
            message = f"the timer {scope!r} of process {timer.pid} has expired: it is sent {name}"
            fields: dict[str, Field] = {"pid": timer.pid, "scope": scope, "signal": timer.signum}
            round.publish(Event("timer_expired", message, Level.WARNING, fields))
            if timer.signum:
                round.signal(timer.pid, timer.signum, f"its timer {scope!r} expired")
        if self._limit is not None:
            self._fail_stuck(round, self._limit)

    def _read(self) -> None:
        if self._pipe is not None:
            with contextlib.suppress(BlockingIOError):
                *lines, self._part = (self._part + os.read(self._pipe, READ_MAX)).split(b"\n")
                self._part = self._part[-READ_MAX:]
                for line in lines:
                    self._take(line)

    def _take_expired(self) -> list[Timer]:
        """Return the timers that have expired, whose processes must be sent their signals."""
        found, processes = self._timers.take_expired(self._now()), self._processes
        if not found:
            return []
        self._processes = {pid: processes[pid] for pid in self._timers.pids()}
        ours = set(descendants(os.getpid()))
        return [timer for timer in found if processes[timer.pid] in ours]

    def _fail_stuck(self, round: RunningRound, limit: float) -> None:
        """Fail workers that have waited in the kernel for too long, where SIGKILL does not reach them."""
        now = self._now()
        waiting = {worker.pid: worker.rank for worker in round.workers if worker.is_running and worker.pid}
        waiting = {pid: rank for pid, rank in waiting.items() if state_of(pid) == "D"}
        self._waits_since = found = {pid: self._waits_since.get(pid, now) for pid in waiting}
        for pid, since in found.items():
            if now - since >= limit:
                where = waits_in(pid) or "an unknown place"
                round.fail(waiting[pid], f"has waited in the kernel, in {where}, for {now - since:.0f} s")

    def _take(self, line: bytes) -> None:
        now, time_of_day = self._now(), time.time()
        try:
            timer = self._timers.take(line, now, time_of_day)
        except (ValueError, OverflowError, RecursionError):
            self.ignored += 1
            return
        if timer is None:
            return
        process = running_process(timer.pid)
        if process != self._processes.get(timer.pid, process) or process is None:
            self._timers.drop([timer.pid])  # among them those of a dead process that had this number
            if process is None:
                return
            self._timers.take(line, now, time_of_day)
        self._processes[timer.pid] = process
        if len(self._timers) > TIMERS_MAX:
            self._timers.drop(pid for pid in self._timers.pids() if running_process(pid) != self._processes[pid])
            if len(self._timers) > TIMERS_MAX:
                self._timers.drop([timer.pid])


def kernel_limit(environ: Mapping[str, str]) -> float | None:
    """Return the seconds that a worker may wait in the kernel; None if the variable is not set, or not positive.

    Raises:
        UsageError: It is no number.
    """
    text = environ.get(KERNEL_LIMIT, "")
    try:
        seconds = float(text or 0)
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        raise UsageError(
            f"{KERNEL_LIMIT}={text} is no number of seconds.", hint="Unset it, or set it to 0, for no limit."
        )
    return seconds if seconds > 0 else None


def pipe_path(environ: Mapping[str, str], directory: Path) -> Path | None:
    """Return the path of the named pipe; None if timers were not requested."""
    if environ.get(ENABLE) != "1":
        return None
    return Path(environ.get(PIPE) or directory / "timers")


def _open(path: Path) -> int:
    """Make the pipe and open it, in place of one without a reader.

    It is opened for writing too, or there would be an end-of-file after each client.

    Raises:
        UsageError: The path is no pipe, the pipe has a reader, or it cannot be made.
    """
    try:
        if path.exists():
            _check_abandoned(path)
            path.unlink()
        os.mkfifo(path, 0o600)
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        raise UsageError(
            f"{PIPE}={path} cannot be made: {exc.strerror}.", hint=f"Unset {PIPE}, and a place is chosen."
        ) from exc


def _check_abandoned(path: Path) -> None:
    if not stat.S_ISFIFO(path.stat().st_mode):
        raise UsageError(f"{PIPE}={path} is not a named pipe.", hint="Name a path that does not exist, or unset it.")
    with contextlib.suppress(OSError):  # ENXIO: it has no reader
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        raise UsageError(
            f"{PIPE}={path} is read by another agent.", hint="Name another path for each agent, or unset it."
        )
