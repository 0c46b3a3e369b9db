"""Processes of this host: their descendants, and signals to exactly one process or group. Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
from collections.abc import Callable, Collection, Iterator

TYPE_CHECKING = False  # typing's: see channel
if TYPE_CHECKING:
    from types import FrameType
    from typing import TypeAlias, TypeVar

    Handler: TypeAlias = Callable[[int, FrameType | None], object] | signal.Handlers
    _T = TypeVar("_T")

Process: TypeAlias = "tuple[int, int]"
"""(pid, start time in ticks since boot), which stays unique when the number is used again."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37
REQUESTS_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_spares: list[int] = []
_SMALL = 4096  # bytes, more than the files of a process that are read whole can hold


def become_subreaper() -> None:
    """Adopt every descendant of this process whose own parent dies, instead of leaving it to init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    keep_a_spare()


@contextlib.contextmanager
def subreaping() -> Iterator[None]:
    """Be a subreaper while the block runs: a process that also runs other code must not stay one."""
    before = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(before))
    become_subreaper()
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def keep_a_spare() -> None:
    """Set a descriptor aside, so that processes can be found and killed when this one has no other left."""
    if not _spares:
        with contextlib.suppress(OSError):
            spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            if spare < 3:  # never in place of a standard stream
                low, spare = spare, fcntl.fcntl(spare, fcntl.F_DUPFD_CLOEXEC, 3)
                os.close(low)
            _spares.append(spare)


def open_standard_streams() -> None:
    """Open descriptors 0, 1 and 2 if they are closed, lest another file become a standard stream."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def ignore_requests_to_end(handler: Handler = signal.SIG_IGN) -> None:
    """Do not end on signals that systemd or Slurm send to all processes of a job: this one ends only after the workers.

    ``handler`` is called with each of them, if it is a function.
    """
    for signum in REQUESTS_TO_END:
        signal.signal(signum, handler)


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Have the kernel send SIGKILL, or another signal, to this process when the thread that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, signum)


def die_once_adopted(parent: int, by: int) -> bool:
    """Wait until ``parent``, which forked this process, has died; then have it die with ``by``, its new parent.

    Needs a process of one thread that has every signal blocked. Returns whether ``by`` has adopted it.
    """
    die_with_parent(signal.SIGUSR2)  # sent once the new parent is in place
    while os.getppid() == parent:
        signal.sigwait({signal.SIGUSR2})
    die_with_parent()
    signal.sigtimedwait({signal.SIGUSR2}, 0)  # if it was not waited for, it must not be delivered later
    return os.getppid() == by


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


def kill(process: Process, signum: int = signal.SIGKILL) -> bool:
    """Send a signal to exactly this process, not to another that has its number now; return True if it was sent.

    Raises:
        OSError: No descriptor is left, not even a spare one, to look at the process.
    """
    (pid, start), pidfd = process, None
    try:
        with contextlib.suppress(OSError):  # gone, or no descriptor is left, or a sandbox forbids pidfds
            pidfd = os.pidfd_open(pid)
        if (stat := _stat(pid)) is None or stat[1:] != (start, True):
            return False
        if pidfd is not None:
            signal.pidfd_send_signal(pidfd, signum)
        else:
            os.kill(pid, signum)  # verified a moment ago, which is the best that is left
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if pidfd is not None:
            os.close(pidfd)
    return True


def signal_group(leader: int, signum: int) -> None:
    """Send a signal to the process group that our child ``leader`` leads, unless it is another user's.

    The child may already be reaped: its number can arrive after its death.
    """
    with contextlib.suppress(PermissionError, ProcessLookupError):
        try:
            os.killpg(leader, signum)
        except ProcessLookupError:
            os.kill(leader, signum)  # so young that it leads no group yet


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


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
