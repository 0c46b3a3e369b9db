"""Sleeping until a directory changes: told by the kernel where it knows, looking again and again where it cannot.

Linux's inotify sees what this host does, and nothing that another host does to a file system that both mount.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import math
import os
import select
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

POLL_INTERVAL = 0.2  # seconds between two looks where the kernel cannot tell

_log = logging.getLogger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)

_CREATE, _DELETE, _MOVED, _DELETE_SELF, _MOVE_SELF = 0x100, 0x200, 0xC0, 0x400, 0x800
_ONLYDIR = 0x0100_0000
_MASK = _CREATE | _DELETE | _MOVED | _DELETE_SELF | _MOVE_SELF | _ONLYDIR

_TOLD = frozenset(
    {
        0xEF53,  # ext2, ext3, ext4
        0x5846_5342,  # XFS
        0x9123_683E,  # btrfs
        0x0102_1994,  # tmpfs
        0x8584_58F6,  # ramfs
        0x794C_7630,  # overlayfs, a container's own root
        0x2FC1_2FC1,  # ZFS
        0xF2F5_2010,  # F2FS
        0xCA45_1A4E,  # bcachefs
    }
)
"""File systems of one host (statfs(2), f_type). It lists what is safe: an unknown one may be a network's, and looking
again and again is slower, but sleeps through nothing."""

_EVENT = struct.Struct("iIII")
_GONE = _DELETE_SELF | _MOVE_SELF | 0x8000  # IN_IGNORED: the watch is gone

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM, errno.ENOSYS})


def told(directory: str) -> bool:
    """Return True if this host's kernel makes every change in ``directory``; raise OSError if there is no such one."""
    buffer = ctypes.create_string_buffer(512)
    _call(_libc.statfs, directory, os.fsencode(directory), buffer)
    return ctypes.cast(buffer, ctypes.POINTER(ctypes.c_long))[0] & 0xFFFF_FFFF in _TOLD


class Alarm:
    """The wait of one thread: until a watched directory changes, time is up, or another thread calls :meth:`close`.

    It sleeps for ``poll_interval`` seconds at most, changes or not; None to be told of them where that is possible.
    """

    def __init__(self, poll_interval: float | None = None) -> None:
        self._interval = poll_interval
        self._watched: set[str] = set()
        self._inotify = -1
        self._bell = -1
        self._lock = threading.Lock()
        self._sleeping = False
        self.closed = False

    def watch(self, directory: str) -> bool:
        """Let changes in ``directory`` end a sleep. True when they did not before: look once more, and then sleep.

        Raises:
            OSError: There is no such directory.
        """
        if self._interval is not None or directory in self._watched:
            return False
        with self._lock:
            if self.closed:
                return False
            try:
                self._add(directory)
            except OSError as exc:
                if exc.errno not in _EXHAUSTED:
                    raise
                _warn(exc.strerror or str(exc))
                self._interval = POLL_INTERVAL
        return True

    def sleep(self, seconds: float) -> bool:
        """Sleep until there is something to look at, for ``seconds`` at most; whether something ended it early."""
        with self._lock:
            if self.closed:
                return True
            if self._bell < 0:
                self._bell = os.eventfd(0)
            self._sleeping = True
        try:
            poll = select.poll()
            poll.register(self._bell, select.POLLIN)
            if self._interval is not None:
                seconds = min(seconds, self._interval)
            elif self._inotify >= 0:
                poll.register(self._inotify, select.POLLIN)
            woken = bool(poll.poll(math.ceil(seconds * 1000)))
            self._drain()
            return woken
        finally:
            with self._lock:
                self._sleeping = False
                if self.closed:
                    self._release()

    def close(self) -> None:
        """End the sleep, and every later one before it begins. From any thread, any number of times."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            if self._sleeping:
                os.eventfd_write(self._bell, 1)  # the sleeper uses the descriptors, and closes them
            else:
                self._release()

    def _add(self, directory: str) -> None:
        if not told(directory):
            self._interval = POLL_INTERVAL
            return
        if self._inotify < 0:
            self._inotify = _call(_libc.inotify_init1, directory, os.O_CLOEXEC | os.O_NONBLOCK)
        _call(_libc.inotify_add_watch, directory, self._inotify, os.fsencode(directory), _MASK)
        self._watched.add(directory)

    def _drain(self) -> None:
        if self._inotify >= 0:
            with suppress(BlockingIOError):  # what happened is looked up, so the events themselves say little new
                while events := os.read(self._inotify, 65536):
                    if any(mask & _GONE for mask in _masks(events)):
                        self._watched.clear()  # there may be another directory in the place of what was watched

    def _release(self) -> None:
        for fd in (self._inotify, self._bell):
            if fd >= 0:
                os.close(fd)
        self._inotify = self._bell = -1


def _masks(events: bytes) -> Iterator[int]:
    """Yield what happened, of each event that was read."""
    at = 0
    while at < len(events):
        _, mask, _, length = _EVENT.unpack_from(events, at)
        yield mask
        at += _EVENT.size + length


def _call(function: ctypes._NamedFuncPointer, directory: str, *arguments: object) -> int:
    result: int = function(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(directory))
    return result


@cache
def _warn(reason: str) -> None:
    """Say so once: every connection of this process would."""
    _log.warning(
        "inotify cannot be had (%s), so the rendezvous directory is looked at every %s s; "
        "raise fs.inotify.max_user_instances and max_user_watches (sysctl) to be told at once",
        reason,
        POLL_INTERVAL,
    )
