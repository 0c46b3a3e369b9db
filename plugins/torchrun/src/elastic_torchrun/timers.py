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
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from elastic_core import Assignment, hookimpl
from elastic_core.config import Program, RunConfig
from elastic_core.errors import UsageError
from elastic_core.events import Event, Field, Level
from elastic_core.exit_codes import signal_name
from elastic_core.host import Process, descendants, running_process, state_of, waits_in
from elastic_core.monitors import RunningRound
from elastic_core.threads import PatientThread

ENABLE = "TORCHELASTIC_ENABLE_FILE_TIMER"
PIPE = "TORCHELASTIC_TIMER_FILE"
KERNEL_LIMIT = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
_CHOSEN = f"Unset {PIPE}, and a place is chosen."
LOOK_SECONDS = 1.0  # between two looks at the states of workers
TIMERS_MAX = 4096  # timers that a process can have at a time; further ones are ignored
READ_MAX = 65536  # bytes that are read at once, the capacity of a pipe


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that is set, or released."""

    pid: int
    scope: str
    at: float  # when it expires, by the monotonic clock; -inf to release it
    signum: int  # 0 to send no signal


def parse_timer(line: bytes, now: float, time_of_day: float) -> Timer:
    """Return the timer of one line of the pipe; ``now`` is by the monotonic clock.

    The line is JSON; ``expiration_time`` is in seconds since the epoch, negative to release the timer.

    Raises:
        ValueError, OverflowError, RecursionError: It is no such line.
    """
    match json.loads(line):
        case {"pid": int(pid), "scope_id": str(scope), "expiration_time": float() | int() as at, "signal": int(signum)}:
            if pid > 0 and math.isfinite(at) and signum < signal.NSIG:
                return Timer(pid, scope, -math.inf if at < 0 else now + at - time_of_day, max(0, signum))
    raise ValueError(f"{line[:200]!r} is no timer")


def _urgency(timer: Timer) -> tuple[bool, float]:
    return timer.signum == 0, timer.at


class Timers:
    """The timers that are set, by process and scope. A process is more than its pid, which a later one may have."""

    def __init__(self) -> None:
        self._timers: dict[Process, dict[str, Timer]] = {}

    def take(self, process: Process, timer: Timer) -> None:
        """Set or release a timer of a process; the first one of a process drops those of processes that have ended."""
        if process not in self._timers:
            self._timers = {other: held for other, held in self._timers.items() if running_process(other[0]) == other}
        held = self._timers.setdefault(process, {})
        held.pop(timer.scope, None)
        if timer.at > -math.inf and len(held) < TIMERS_MAX:
            held[timer.scope] = timer

    def take_expired(self, now: float) -> dict[Process, Timer]:
        """Remove the timers of each process of which one has expired; return the first of these, one with a signal."""
        due = {process: [one for one in held.values() if one.at <= now] for process, held in self._timers.items()}
        first = {process: min(held, key=_urgency) for process, held in due.items() if held}
        self._timers = {process: held for process, held in self._timers.items() if process not in first}
        return first

    def due(self, now: float) -> float:
        """Return in how many seconds the next timer expires; infinity for none."""
        at = min((timer.at for held in self._timers.values() for timer in held.values()), default=math.inf)
        return max(0.0, at - now)


class Watchdog:
    """The plugin: sends the signals of expired timers, and fails workers that wait in the kernel for too long."""

    def __init__(self, environ: Mapping[str, str] = os.environ, now: Callable[[], float] = time.monotonic) -> None:
        self._environ, self._now = environ, now
        self._limit: float | None = None
        self._path: Path | None = None
        self._pipe: int | None = None
        self._round: RunningRound | None = None
        self._timers, self._part = Timers(), b""  # and the beginning of a line
        self._waits_since: dict[int, float] = {}
        self._started = False
        self._lock = threading.Lock()  # held by whatever reads the pipe, or changes it
        self._closing = threading.Event()

    @hookimpl
    def elastic_configure(self, config: RunConfig) -> None:
        """Check the settings before the node joins, since other nodes stop their workers for a new node.

        Raises:
            UsageError: The limit is no number, or the named pipe is another agent's, no pipe, or cannot be made.
        """
        self._limit = kernel_limit(self._environ)
        if self._environ.get(PIPE) and (path := pipe_path(self._environ, Path())) is not None:
            if not os.path.exists(path) and not os.access(path.parent, os.W_OK):
                raise UsageError(f"{PIPE}={path} cannot be made there.", hint=_CHOSEN)
            _check_free(path)

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
                self._timers, self._part = Timers(), b""
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

    def _run(self) -> None:
        """Look whenever a timer is written or expires, and at the workers' states every second."""
        while not self._closing.is_set():
            with contextlib.suppress(OSError, ValueError):  # closed just now
                pipe = self._pipe
                select.select([] if pipe is None else [pipe], [], [], min(LOOK_SECONDS, self._timers.due(self._now())))
                self.look()

    def look(self) -> None:
        """Read timers, send the signals of those that have expired, and look at the states of the workers."""
        with self._lock:
            self._read()
            expired = self._timers.take_expired(self._now())
        if (round := self._round) is None:
            return
        ours = set(descendants(os.getpid())) if expired else ()
        due = [timer for process, timer in expired.items() if process in ours]
        for timer in sorted(due, key=_urgency):
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
        if self._pipe is None:
            return
        with contextlib.suppress(BlockingIOError):
            *lines, part = (self._part + os.read(self._pipe, READ_MAX)).split(b"\n")
            self._part = part[-READ_MAX:]
            for line in lines:
                with contextlib.suppress(ValueError, OverflowError, RecursionError):  # it is no timer
                    timer = parse_timer(line, self._now(), time.time())
                    if (process := running_process(timer.pid)) is not None:
                        self._timers.take(process, timer)

    def _fail_stuck(self, round: RunningRound, limit: float) -> None:
        """Fail workers that have waited in the kernel for too long, where SIGKILL does not reach them."""
        now = self._now()
        workers = {worker.pid: worker.rank for worker in round.workers if worker.is_running and worker.pid}
        self._waits_since = {pid: self._waits_since.get(pid, now) for pid in workers if state_of(pid) == "D"}
        for pid, since in self._waits_since.items():
            if now - since >= limit:
                where = waits_in(pid) or "an unknown place"
                round.fail(workers[pid], f"has waited in the kernel, in {where}, for {now - since:.0f} s")


def kernel_limit(environ: Mapping[str, str]) -> float | None:
    """Return the seconds that a worker may wait in the kernel, None for no limit; UsageError if they are no number."""
    text = environ.get(KERNEL_LIMIT) or "0"
    with contextlib.suppress(ValueError):
        if not math.isnan(seconds := float(text)):
            return seconds if seconds > 0 else None
    raise UsageError(f"{KERNEL_LIMIT}={text} is no number of seconds.", hint="Unset it, or set it to 0, for no limit.")


def pipe_path(environ: Mapping[str, str], directory: Path) -> Path | None:
    """Return the path of the named pipe; None if timers were not requested."""
    return Path(environ.get(PIPE) or directory / "timers") if environ.get(ENABLE) == "1" else None


def _open(path: Path) -> int:
    """Make the pipe and open it, for writing too, so that no client ends the file; UsageError if it cannot be made."""
    try:
        if path.exists():
            _check_free(path)
            path.unlink()
        os.mkfifo(path, 0o600)
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        raise UsageError(f"{PIPE}={path} cannot be made: {exc.strerror}.", hint=_CHOSEN) from exc


def _check_free(path: Path) -> None:
    """Raise a UsageError if the path leads to a file that is no named pipe, or to a pipe with a reader."""
    if not os.path.exists(path):
        return
    if not path.is_fifo():
        raise UsageError(f"{PIPE}={path} is not a named pipe.", hint="Name a path that does not exist, or unset it.")
    with contextlib.suppress(OSError):  # ENXIO: it has no reader
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        hint = "Name another path for each agent, or unset it."
        raise UsageError(f"{PIPE}={path} is read by another agent.", hint=hint)
