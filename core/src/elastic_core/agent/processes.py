"""Processes of this host: who descends from whom, and signals that reach exactly those that are meant. Linux only.

Imported by the warden process, so by few and cheap means.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from typing import TypeAlias

Process: TypeAlias = "tuple[int, int]"
"""A process, whatever becomes of its number: (pid, start time in ticks since boot)."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def become_subreaper() -> None:
    """Adopt every descendant of this process whose own parent dies, instead of leaving it to init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have the kernel send SIGKILL to this process when the thread that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def descendants(root: int) -> list[Process]:
    """All processes below ``root`` that still run, parents before their children."""
    children: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _stat(int(name))) is not None:
            parent, start = stat
            children.setdefault(parent, []).append((int(name), start))
    found = children.get(root, [])[:]
    for pid, _ in found:  # grows as it is walked
        found += children.get(pid, ())
    return found


def kill(process: Process) -> bool:
    """Send SIGKILL to exactly this process and to none that has its number now; whether it was there to receive it."""
    pid, start = process
    pidfd = None
    try:
        with contextlib.suppress(OSError):  # gone, or no descriptor is left, or a sandbox forbids pidfds
            pidfd = os.pidfd_open(pid)
        if (stat := _stat(pid)) is None or stat[1] != start:
            return False
        if pidfd is not None:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)  # verified a moment ago, which is the best that is left
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if pidfd is not None:
            os.close(pidfd)
    return True


def signal_group(leader: int, signum: int) -> None:
    """Send a signal to the process group that our child ``leader`` leads. A group of another user is left alone."""
    with contextlib.suppress(PermissionError):
        try:
            os.killpg(leader, signum)
        except ProcessLookupError:
            os.kill(leader, signum)  # so young that it leads no group yet


def name_of(pid: int) -> str:
    """The short name of a process, or ''."""
    return _read(pid, "comm").strip()


def waits_in(pid: int) -> str:
    """The kernel's function in which a process waits, or '' where that is unknown."""
    return _read(pid, "wchan").strip("0\n")


def _stat(pid: int) -> tuple[int, int] | None:
    """(parent, start time) of a process that still runs, else None."""
    line = _read(pid, "stat")
    if not line:
        return None
    # proc(5), counted from the third field: the second, the name in parentheses, can hold anything.
    fields = line[line.rfind(")") + 2 :].split()
    state, parent, threads, start = fields[0], fields[1], fields[17], fields[19]
    # A zombie with more than one thread is a process whose main thread alone has ended.
    if state == "X" or (state == "Z" and int(threads) <= 1):
        return None
    return int(parent), int(start)


def _read(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
