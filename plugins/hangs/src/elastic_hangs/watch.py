"""Notices that a worker makes no progress: from its steps, its output and its use of CPUs and disks.

Everything here is read from outside, so it works for any program: an agent looks at its workers once in a fiftieth of
the window, at a cost of some 20 µs each. A suspicion ends nothing. It has the leader ask all nodes where their ranks
are, and what they answer shows whether anything moves.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace

from elastic_core.host import all_pids, read_proc, stat_fields, waits_in
from elastic_core.monitors import RunningRound, WorkerView

LEAST_WINDOW_SECONDS = 300.0  # without progress, where the user sets no window
STEPS_PER_WINDOW = 10.0  # a window is at least this many times the longest step
LOOKS_PER_WINDOW = 50
LOOK_SECONDS = 0.2, 5.0  # the least and the greatest interval between two looks
CPU_SHARE = 0.01  # of a core: a process that uses less waits
CPU_SHARE_QUIET = 0.03  # the same for a worker with its children, over its whole silence
DISK_BYTES_PER_SECOND = 1 << 16  # a worker that reads or writes more, as for a checkpoint, does not hang
CALLS_PER_SECOND, FEW_CALLS = 1.0, 3  # a worker that reads, writes or receives data more often may be working
PAGE_BYTES = 1 << 12  # the unit in which file I/O is counted
QUIET_SHARE = 0.1  # of the window, without a sign of progress: then begins the time over which a worker is judged
JUDGED_SHARE = 0.5  # of the window: a worker is judged by a silence that is as long; a shorter one says nothing
PAUSE_LOOKS = 10.0  # by which a look is late if the agent was paused, as with its machine
PAUSE_SHARE = 0.5  # of the window: after a pause that is as long, each silence begins anew
_SLEEPS = "hrtimer", "do_nanosleep", "futex"  # the kernel's functions in which a thread waits for time, or for a lock
CPU_TICK_SECONDS = 0.015  # more than one tick of the kernel's clock, its unit
_PAUSES, _PPOLL, _SLEEP, _NOT_RESTARTED = {
    "x86_64": ({"34", "35", "130"}, "271", "230", {"7", "23", "230", "232", "270", "271", "281"}),
    "aarch64": ({"101", "133"}, "73", "115", {"22", "72", "73", "115"}),
}.get(os.uname().machine, ({"?"}, "?", "?", {"?"}))
"""The numbers of pause, nanosleep and rt_sigsuspend, of ppoll, of clock_nanosleep, and of poll, select and the like."""
_DELAY_WEIGHT = 0.1  # of the time in which a main thread waits for a CPU
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def pauses(pid: int) -> bool:
    """Return True if a process is in ``pause``, ``sigsuspend`` or ``sleep``: any handled signal would end that."""
    number, *arguments = read_proc(pid, "syscall").split() or [""]
    if number in _PAUSES:
        return True
    endless_poll = number == _PPOLL and arguments[:3] == ["0x0"] * 3  # so pause() is made where it is no system call
    relative_sleep = number == _SLEEP and arguments[1:2] == ["0x0"]  # native code's: Python sleeps until an instant
    return endless_poll or relative_sleep or "sys_pause" in waits_in(pid)


def is_in_call_that_ends(pid: int) -> bool:
    """Return True if a process waits in a system call that any signal ends, unless its caller tries again."""
    return read_proc(pid, "syscall").partition(" ")[0] in _NOT_RESTARTED


def cpu_seconds_wanted(pid: int, stat: Sequence[str] | None = None) -> float:
    """Return for how long a process has used a CPU, and a tenth of how long its main thread has waited for one.

    Its children that it has waited for count too. On a host with too few CPUs a process that computes waits most of the
    time. One that sleeps, and is only woken to write its stacks, waits little. The result is 0 of one that is gone.
    ``stat`` has the fields of its file of that name, where they are known already.
    """
    fields = stat_fields(pid) if stat is None else stat
    ran = sum(map(int, fields[11:15])) / _TICKS_PER_SECOND  # utime, stime, cutime, cstime
    return ran + _DELAY_WEIGHT * int((read_proc(pid, "schedstat").split() or ["0", "0"])[1]) / 1e9


def bytes_written(pid: int) -> int:
    """Return how many bytes a process has written, by write(2) and the like; 0 where the kernel does not say."""
    return _io(pid, "wchar")


def thread_nanoseconds(pid: int) -> int:
    """Return how long all threads of a process have run on a CPU; 0 where it is unknown."""
    try:
        names = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0
    return sum(int((read_proc(pid, f"task/{name}/schedstat").split() or ["0"])[0]) for name in names)


def _io(pid: int, *names: str) -> int:
    """Return the sum of these counts of proc_pid_io(5); 0 where they may not be read."""
    counts = dict(line.split(": ") for line in read_proc(pid, "io").splitlines() if ": " in line)
    return sum(int(counts.get(name, 0)) for name in names)


def _waits(pid: int) -> int:
    """Return how often the main thread of a process has given up its CPU to wait; 0 where it is unknown."""
    lines = read_proc(pid, "status").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches:")), 0)


@dataclass(frozen=True, slots=True)
class Signs:
    """The latest signs of progress of a worker; instants of the monotonic clock."""

    stepped_at: float | None  # when its step last changed; None if no step is known
    printed_at: float  # when it last wrote anything; its start before that
    computed_at: float  # when it was last seen to use a CPU; its start before that

    @property
    def shown(self) -> float:
        """The instant of the latest step or output."""
        return max(self.stepped_at or 0.0, self.printed_at)

    @property
    def newest(self) -> float:
        """The instant of the latest sign."""
        return max(self.shown, self.computed_at)


def makes_progress(signs: Signs, now: float, window: float) -> bool:
    """Return True if a worker has shown progress within the window.

    A worker whose steps are known must come to a new one, or print. Any other must print, or use a CPU.
    """
    other = signs.computed_at if signs.stepped_at is None else signs.stepped_at
    return now - max(signs.printed_at, other) < window


def window_seconds(given: float | None, longest_step: float | None) -> float:
    """Return the seconds without progress after which a worker is suspected."""
    if given is not None:
        return given
    return max(LEAST_WINDOW_SECONDS, STEPS_PER_WINDOW * (longest_step or 0.0))


def steps_advance(age: float, window: float, longest_step: float | None) -> bool:
    """Return True if a job whose newest step is ``age`` seconds old still makes steps, as far as can be known.

    If it hangs, that step is as old as the window, less the step in which it began to hang, and two looks. A rank whose
    steps are not known may be suspected before, since its window knows nothing of the longest step. Half a window of
    that counts at most: the user's window may be shorter than a step.
    """
    return age + min(longest_step or 0.0, window / 2) + 2.0 * hang_check_interval(window) < window


def hang_check_interval(window: float) -> float:
    """Return the seconds between two looks."""
    least, most = LOOK_SECONDS
    return min(most, max(least, window / LOOKS_PER_WINDOW))


def uses_cpu(seconds: float, elapsed: float, share: float = CPU_SHARE) -> bool:
    """Return True if a process that used a CPU for so many of the ``elapsed`` seconds does more than wait."""
    return seconds > max(share * elapsed, CPU_TICK_SECONDS)


@dataclass(frozen=True, slots=True)
class Use:
    """The resources that a worker has used until a monotonic instant; CPU, disk, blocked with all its descendants."""

    at: float
    cpu: float  # seconds, as of :func:`cpu_seconds_wanted`
    disk: int  # bytes read from and written to disks and network file systems; memory files do not count
    calls: int  # of read(2), write(2) and the like, on anything
    waits: int  # how often its main thread has waited
    blocked: int  # how many processes are in uninterruptible sleep at that instant, as while they wait for a disk

    def without(self, before: Use, after: Use) -> Use:
        """Return this use as if the worker had done nothing between the two others: then it was asked for stacks."""
        pairs = zip(astuple(self), astuple(before), astuple(after), strict=True)
        return Use(*(mine + new - old for mine, old, new in pairs))

    def computed_since(self, before: Use) -> bool:
        """Return True if the worker has used more of a CPU since then than one that waits."""
        return uses_cpu(self.cpu - before.cpu, self.at - before.at, CPU_SHARE_QUIET)

    def saves_since(self, before: Use) -> bool:
        """Return True if the worker has read from disks since then, or written to them, as for a checkpoint."""
        return self.disk - before.disk >= DISK_BYTES_PER_SECOND * (self.at - before.at)

    def may_work_since(self, before: Use, waits_in: str) -> bool:
        """Return True if it may have worked: it used CPUs, moved data, or waits for a disk that still moves data."""
        elapsed, sleeps = self.at - before.at, waits_in.startswith(_SLEEPS)
        calls, wakes = self.calls - before.calls, 0 if sleeps else self.waits - before.waits
        few = CALLS_PER_SECOND * elapsed + FEW_CALLS
        pages = (self.disk - before.disk) / PAGE_BYTES
        return self.computed_since(before) or max(calls, wakes, pages) > few or (self.blocked > 0 and pages > 0)


def uses_of(pids: Collection[int]) -> dict[int, Use]:
    """Return what these workers have used until now."""
    now, found = time.monotonic(), {pid: stat for pid in all_pids() if (stat := stat_fields(pid))}
    uses = {pid: Use(now, 0.0, 0, _io(pid, "syscr", "syscw"), _waits(pid), 0) for pid in pids}
    for pid, stat in found.items():
        above, seen = pid, {0}
        while above not in uses and above in found and above not in seen:
            seen.add(above)
            above = int(found[above][1])
        if (use := uses.get(above)) is not None:
            cpu, disk = cpu_seconds_wanted(pid, stat), _io(pid, "read_bytes", "write_bytes")
            blocked = use.blocked + (stat[0] == "D")
            uses[above] = replace(use, cpu=use.cpu + cpu, disk=use.disk + disk, blocked=blocked)
    return uses


@dataclass(slots=True)
class _Seen:
    pid: int
    tails: tuple[bytes, ...]
    printed_at: float
    cpu: float
    computed_at: float
    written: int = 0


@dataclass(slots=True)
class HangWatch:
    """Looks at the workers of a round, again and again."""

    given: float | None  # the user's window in seconds; None for one that follows from the longest step
    round: RunningRound
    cpu: Callable[[int], float] = cpu_seconds_wanted
    """Returns the CPU seconds that a process has used or waited for; 0 of one that is gone."""
    written: Callable[[int], int] = bytes_written
    """Returns how many bytes a process has written, to anything. Counts as output of a worker that has the agent's
    own stdout, whose text the agent does not read."""
    uses: Callable[[Collection[int]], dict[int, Use]] = uses_of  # returns what workers have used until now
    now: Callable[[], float] = time.monotonic  # seconds, monotonic
    quiet: dict[int, Use] = field(default_factory=dict)
    """By pid: what a worker had used when its silence began; what requests for stacks have cost is added to it later.
    A silence ends with a step, output, or the use of a CPU for more than CPU_SHARE_QUIET of it. Changed in place."""
    silent: Mapping[int, int | None] = field(default_factory=dict)
    """The ranks that had shown no progress for a window at the last look, and the last step of each; None if not known.
    Replaced, never changed."""
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _looked_at: float = math.inf
    _longest_step: float | None = None  # at the last look
    _resumed_at: float = -math.inf

    @property
    def window(self) -> float:
        """The seconds without progress after which a worker is suspected."""
        return window_seconds(self.given, self.round.longest_step())

    def look(self, workers: Iterable[WorkerView]) -> float:
        """Return the window if one of these workers, which live, has shown no progress for as long; else 0."""
        now, newest = self.now(), self.round.newest_progress()
        before = window_seconds(self.given, self._longest_step)  # for a pause may have made a step longer
        elapsed, self._looked_at = now - self._looked_at, now
        if elapsed > PAUSE_LOOKS * hang_check_interval(before):
            self.round.progress.skip_pause(self._longest_step, number=self.round.number)
            if elapsed > PAUSE_SHARE * before:
                self._resumed_at = now  # the agent saw nothing during the pause, so each silence begins now
                self._seen.clear()
                self.quiet.clear()
        self._longest_step, window = self.round.longest_step(), self.window
        ages = {rank: age for rank, (reached, age) in newest.items() if reached.position is not None}
        stepped = {rank: max(now - age, self._resumed_at) for rank, age in ages.items()}
        signs = {worker.rank: self._signs(worker, now, elapsed, stepped.get(worker.rank)) for worker in workers}
        self._follow_silences({self._seen[rank].pid: sign for rank, sign in signs.items()}, now, window)
        silent = [rank for rank, sign in signs.items() if not makes_progress(sign, now, window)]
        self.silent = {rank: newest[rank][0].step if rank in newest else None for rank in silent}
        return window if self.silent else 0.0

    def _follow_silences(self, signs: Mapping[int, Signs], now: float, window: float) -> None:
        """Begin and end the silences of the living workers, whose signs these are by pid."""
        recent = now - QUIET_SHARE * window
        bursts = self.quiet.keys() & {pid for pid, sign in signs.items() if sign.computed_at == now}
        for pid, use in (self.uses(bursts) if bursts else {}).items():
            before = self.quiet[pid]
            if use.cpu < before.cpu or use.computed_since(before):  # or its children have gone, with what they used
                del self.quiet[pid]
        for pid in [pid for pid in self.quiet if pid not in signs or signs[pid].shown > recent]:
            del self.quiet[pid]
        if begin := {pid for pid, sign in signs.items() if sign.newest <= recent} - self.quiet.keys():
            self.quiet.update(self.uses(begin))

    def quiet_use(self, pid: int) -> Use | None:
        """Return what a worker had used when its silence began; None if that is less than half a window ago."""
        use = self.quiet.get(pid)
        return use if use is not None and self.now() - use.at >= JUDGED_SHARE * self.window else None

    def advances(self) -> bool:
        """Return True if a worker here came to a new step lately, or may have, while the agent was paused."""
        ages = [age for reached, age in self.round.newest_progress().values() if reached.position is not None]
        return steps_advance(min([*ages, self.now() - self._resumed_at]), self.window, self.round.longest_step())

    def positions(self) -> dict[int, float | None]:
        """Return how far each rank has come, in whatever is known of it. Any thread may call this."""
        return {rank: reached.position for rank, (reached, _) in self.round.newest_progress().items()}

    def prints(self, rank: int) -> bool:
        """Return True if a worker here has printed since long before the end of the window."""
        age = self.now() - self._seen[rank].printed_at if rank in self._seen else math.inf
        return steps_advance(age, self.window, self.round.longest_step())

    def _signs(self, worker: WorkerView, now: float, elapsed: float, stepped_at: float | None) -> Signs:
        rank, pid, tails = worker.rank, worker.pid or 0, worker.tails
        used, seen = self.cpu(pid), self._seen.get(rank)
        if seen is None or seen.pid != pid:
            seen = self._seen[rank] = _Seen(pid, tails, now, used, now)
        written = self.written(pid) if worker.hides_stdout else 0
        replaced = any(one is not other for one, other in zip(tails, seen.tails, strict=True))  # never changed in place
        if written != seen.written or replaced:
            seen.printed_at = now
        if uses_cpu(used - seen.cpu, elapsed):
            seen.computed_at = now
        seen.tails, seen.cpu, seen.written = tails, used, written
        return Signs(stepped_at, seen.printed_at, seen.computed_at)
