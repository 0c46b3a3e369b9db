"""Subreapers, signals at the death of a parent, and signals to exactly one process or group. Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator

from elastic_core.host.processes import Process, keep_a_spare, running_process

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37
REQUESTS_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


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


def open_standard_streams() -> None:
    """Open descriptors 0, 1 and 2 if they are closed, lest another file become a standard stream."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def ignore_requests_to_end(handler: Callable[..., object] | signal.Handlers = signal.SIG_IGN) -> None:
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


def kill(process: Process, signum: int = signal.SIGKILL) -> bool:
    """Send a signal to exactly this process, not to another that has its number now; return True if it was sent.

    Raises:
        OSError: No descriptor is left, not even a spare one, to look at the process.
    """
    pid, pidfd = process[0], None
    try:
        with contextlib.suppress(OSError):  # gone, or no descriptor is left, or a sandbox forbids pidfds
            pidfd = os.pidfd_open(pid)
        if running_process(pid) != process:
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


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
