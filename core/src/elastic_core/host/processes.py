"""The processes of this host, as ``/proc`` shows them; Linux only. The warden imports it, so it must stay cheap."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Collection

TYPE_CHECKING = False  # typing's, which takes 0.6 MB of the warden
if TYPE_CHECKING:
    from typing import TypeAlias, TypeVar

    _T = TypeVar("_T")

Process: TypeAlias = "tuple[int, int]"
"""(pid, start time in ticks since boot), which stays unique when the number is used again."""

_spares: list[int] = []
_SMALL = 4096  # bytes, more than the files of a process that are read whole can hold


def keep_a_spare() -> None:
    """Set a descriptor aside, so that processes can be found and killed when this one has no other left."""
    if not _spares:
        with contextlib.suppress(OSError):
            spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            if spare < 3:  # never in place of a standard stream
                low, spare = spare, fcntl.fcntl(spare, fcntl.F_DUPFD_CLOEXEC, 3)
                os.close(low)
            _spares.append(spare)


def children() -> list[int]:
    """Return the processes whose parent is this one, among them those that have ended and were not waited for.

    Unlike :func:`descendants` it misses none: a child leaves the list only when this process waits for it, and a
    process that is adopted while the list is read had an ancestor on it.
    """
    own = os.getpid()
    try:
        with open(f"/proc/self/task/{own}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:  # a kernel without this list, or no descriptor is left
        return [pid for pid, (parent, _, _) in _all().items() if parent == own]


def descendants(root: int, without: Collection[int] = ()) -> list[Process]:
    """Return all processes below ``root`` that still run, parents before their children.

    Processes of ``without`` are left out, and all that is below them.

    Raises:
        OSError: No descriptor is left, not even a spare one.
    """
    below: dict[int, list[Process]] = {}
    for pid, (parent, start, runs) in _all().items():
        if runs and pid not in without:
            below.setdefault(parent, []).append((pid, start))
    found = below.get(root, [])[:]
    for pid, _ in found:  # grows as it is walked
        found += below.get(pid, ())
    return found


def name_of(pid: int) -> str:
    """Return the short name of a process, or ''."""
    return read_proc(pid, "comm").strip()


def session_of(pid: int) -> int:
    """Return the session of a process; 0 of one that is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def waits_in(pid: int) -> str:
    """Return the kernel's function in which a process waits, or '' where that is unknown."""
    return read_proc(pid, "wchan").strip("0\n")


def state_of(pid: int) -> str:
    """Return a process's state, one letter as in proc(5); '' where there is no such process."""
    return next(iter(stat_fields(pid)), "")


def run_nanoseconds(pid: int) -> int:
    """Return how long the main thread of a process has run on a CPU; 0 where it is unknown."""
    return int((read_proc(pid, "schedstat").split() or ["0"])[0])


def catches(pid: int, *signums: int) -> bool:
    """Return True if a process has a handler for each of these signals; False for one that is gone."""
    lines = read_proc(pid, "status").splitlines()
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return all(caught >> (signum - 1) & 1 for signum in signums)


def running_process(pid: int) -> Process | None:
    """Return the process that has this number now; None where none runs."""
    stat = _stat(pid)
    return (pid, stat[1]) if stat is not None and stat[2] else None


def all_pids() -> list[int]:
    """Return the numbers of all processes of this host."""
    return [int(name) for name in _with_a_descriptor(lambda: os.listdir("/proc")) if name.isdigit()]


def _all() -> dict[int, tuple[int, int, bool]]:
    """Return the :func:`_stat` of every process of this host."""
    return {pid: stat for pid in all_pids() if (stat := _stat(pid)) is not None}


def _stat(pid: int) -> tuple[int, int, bool] | None:
    """Return the parent and the start time of a process, and whether it still runs; None if it is gone."""
    if not (fields := stat_fields(pid)):
        return None
    state, parent, threads, start = fields[0], fields[1], fields[17], fields[19]
    # A zombie with more than one thread is a process whose main thread alone has ended.
    runs = not (state == "X" or (state == "Z" and int(threads) <= 1))
    return int(parent), int(start), runs


def stat_fields(pid: int) -> list[str]:
    """Return the fields of proc(5) from the third on: the second, the name in parentheses, can hold anything."""
    line = read_proc(pid, "stat")
    return line[line.rfind(")") + 2 :].split()


def read_proc(pid: int, name: str) -> str:
    """Return the text of a small file of a process, '' of a process that is gone."""

    def read() -> str:
        file = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)  # a file object takes twice the calls
        try:
            return os.read(file, _SMALL).decode(errors="replace")  # /proc gives all of it at once
        finally:
            os.close(file)

    try:
        return _with_a_descriptor(read)
    except OSError as exc:
        if exc.errno in (errno.EMFILE, errno.ENFILE):
            raise  # that says nothing of the process
        return ""


def _with_a_descriptor(action: Callable[[], _T]) -> _T:
    """Run an action that opens one descriptor, and free the spare one for it if there is no other."""
    try:
        return action()
    except OSError as exc:
        if exc.errno not in (errno.EMFILE, errno.ENFILE) or not _spares:
            raise
    os.close(_spares.pop())
    try:
        return action()
    finally:
        keep_a_spare()
