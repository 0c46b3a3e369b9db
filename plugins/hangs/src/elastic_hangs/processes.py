"""Facts from /proc about workers that may hang: their use of CPUs and disks, and the call in which they wait."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from elastic_core.warden import all_pids, read_proc, stat_fields, waits_in

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


def cpu_seconds_wanted(pid: int) -> float:
    """Return for how long a process has used a CPU, and a tenth of how long its main thread has waited for one.

    Its children that it has waited for count too. On a host with too few CPUs a process that computes waits most of the
    time. One that sleeps, and is only woken to write its stacks, waits little. The result is 0 of one that is gone.
    """
    return _cpu_seconds(stat_fields(pid)) + _delay_seconds(pid)


def _delay_seconds(pid: int) -> float:
    return _DELAY_WEIGHT * int((read_proc(pid, "schedstat").split() or ["0", "0"])[1]) / 1e9


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


def used_by_trees(roots: Collection[int]) -> dict[int, tuple[float, int, int, int, int]]:
    """Return what each of these processes has used.

    That is, together with all its descendants, the CPU time in seconds, as of :func:`cpu_seconds_wanted`, and the bytes
    read from and written to disks and network file systems (memory files do not count); of itself alone, the calls of
    read(2), write(2) and the like, on anything, and how often its main thread has waited; and how many of all these
    processes are in uninterruptible sleep at this moment, as while they wait for a disk (the state D of proc(5)).
    """
    found = {pid: fields for pid in all_pids() if (fields := stat_fields(pid))}
    totals = {pid: (0.0, 0, _io(pid, "syscr", "syscw"), _waits(pid), 0) for pid in roots}
    for pid, fields in found.items():
        above, seen = pid, {0}
        while above not in totals and above in found and above not in seen:
            seen.add(above)
            above = int(found[above][1])
        if above in totals:
            cpu, disk, calls, waits, blocked = totals[above]
            cpu += _cpu_seconds(fields) + _delay_seconds(pid)
            disk += _io(pid, "read_bytes", "write_bytes")
            totals[above] = cpu, disk, calls, waits, blocked + (fields[0] == "D")
    return totals


def _io(pid: int, *names: str) -> int:
    """Return the sum of these counts of proc_pid_io(5); 0 where they may not be read."""
    counts = dict(line.split(": ") for line in read_proc(pid, "io").splitlines() if ": " in line)
    return sum(int(counts.get(name, 0)) for name in names)


def _waits(pid: int) -> int:
    """Return how often the main thread of a process has given up its CPU to wait; 0 where it is unknown."""
    lines = read_proc(pid, "status").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches:")), 0)


def _cpu_seconds(fields: Sequence[str]) -> float:
    return sum(map(int, fields[11:15])) / _TICKS_PER_SECOND  # utime, stime, cutime, cstime
