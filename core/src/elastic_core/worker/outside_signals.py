"""Has a worker's agent know of each signal that the program handles, such as SIGTERM by a scheduler or a person.

A program that handles SIGTERM may save, and exit with 0, as if it had finished. So before the program begins,
:func:`prepare` makes a pair of sockets, gives one to the agent, and the other to :func:`signal.set_wakeup_fd`: the
handler in C writes the number of each signal that has a handler in Python. Nothing else is done, and nothing is known
of a program that uses another wake-up descriptor, as asyncio's ``add_signal_handler`` does.

A fork of the worker writes to the same socket; the kernel tells its process id from the worker's. The worker keeps both
ends open, so that a write never fails because the agent has closed its own. A program sees no wake-up descriptor:
:func:`signal.set_wakeup_fd` returns -1 for ours, and -1 restores it.

``forkserver/startup`` executes this file by its path, like ``stack_dump``.
"""

import _signal  # type: ignore[import-not-found]  # the built-in part of signal, which imports enum
import _socket
import fcntl
import os
import sys

_LEAST_DESCRIPTOR = 208
"""So high that hardly a file of the program gets the number, should the program close all descriptors."""
_real = _signal.set_wakeup_fd
_ours = -1


def set_wakeup_fd(fd: int, /, *, warn_on_full_buffer: bool = True) -> int:  # noqa: D103  (it has the docstring of the real one)
    old: int = _real(_ours if fd == -1 else fd, warn_on_full_buffer=warn_on_full_buffer and fd != -1)
    return -1 if old == _ours else old


set_wakeup_fd.__doc__, set_wakeup_fd.__module__ = _real.__doc__, _signal.__name__


def hide() -> None:
    """Hide a descriptor of ours from modules that are imported from now on, and from those that use signal's."""
    for name in ("_signal", "signal"):
        if (module := sys.modules.get(name)) is not None and module.set_wakeup_fd is _real:
            module.set_wakeup_fd = set_wakeup_fd  # type: ignore[attr-defined]


def prepare() -> None:
    """Report signals from now on. Without an agent, a descriptor or a main thread, the process goes without."""
    global _ours
    try:
        channel = _socket.socket(fileno=int(os.environ["ELASTIC_CONTROL_FD"]))
    except (KeyError, ValueError, OSError):
        return
    try:
        if (channel.family, channel.type) == (_socket.AF_UNIX, _socket.SOCK_SEQPACKET):
            _ours = _report_to(channel)
            hide()
    except (OSError, ValueError):  # a ValueError outside of the main thread
        pass
    finally:
        channel.detach()


def _report_to(channel: _socket.socket) -> int:
    """Give the agent its end, and return the wake-up descriptor; -1 if an import has set another one."""
    if (before := _real(-1)) != -1:
        _real(before)
        return -1
    ends = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        ends[0].setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
        ends[1].setblocking(False)
        reading, writing = (fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, _LEAST_DESCRIPTOR) for end in ends)
    finally:
        for end in ends:
            end.close()
    packet = b'{"type": "signals", "pid": %d}' % os.getpid()
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, reading.to_bytes(4, sys.byteorder))]
    channel.sendmsg([packet], rights, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
    _real(writing, warn_on_full_buffer=False)
    return writing
