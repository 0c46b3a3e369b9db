"""Reading over errors that pass: a file server that is away for a moment, a handle that has gone stale.

A read error says nothing about what is on the disk, so it is never taken for damage. Errors that may pass are tried
again for a bounded time, at the byte where they came up.
"""

from __future__ import annotations

import errno
import io
import logging
import threading
import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from elastic_torch.disk.storage import Storage

logger = logging.getLogger("elastic_torch.disk")
T = TypeVar("T")
BUFFER = 1 << 20  # bytes that are read at once
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between two tries
LASTING = (errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)
"""Errors that stay, besides those that have a class of their own."""


def may_pass(error: OSError) -> bool:
    """Return True if another try may succeed. A missing file or a missing permission stays so."""
    lasting = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
    return not isinstance(error, lasting) and error.errno not in LASTING


class Retry:
    """Tries again after errors that may pass: for so many seconds in all, from the first error that has not passed.

    Several threads may use one.
    """

    def __init__(
        self, seconds: float, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._seconds, self._now, self._sleep = seconds, now, sleep
        self._lock = threading.Lock()
        self._end: float | None = None

    def __call__(self, act: Callable[[], T]) -> T:
        """Return the result of ``act``, or its last error."""
        pause, failed = FIRST_PAUSE, False
        while True:
            try:
                result = act()
            except OSError as error:
                left = self._left() if may_pass(error) else 0.0
                if left <= 0:
                    raise
                if not failed:
                    logger.warning("%s: trying again for up to %.0f seconds.", error, left)
                failed = True
            else:
                if failed:
                    with self._lock:
                        self._end = None
                return result
            self._sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _left(self) -> float:
        with self._lock:
            now = self._now()
            if self._end is None:
                self._end = now + self._seconds
            return self._end - now


ONCE = Retry(0)  # a single try


class _File(io.RawIOBase):
    """A file that is opened again, at the same byte, after an error that may pass."""

    def __init__(self, open: Callable[[], IO[bytes]], retry: Retry) -> None:
        super().__init__()
        self._open, self._retry = open, retry
        self._file: IO[bytes] | None = None
        self._at = 0
        retry(self._opened)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = self._tried(lambda file: file.seek(offset, whence))
        return self._at

    def readinto(self, buffer: Buffer, /) -> int:
        """Read some bytes; how many, 0 at the end."""
        view = memoryview(buffer).cast("B")
        count = self._tried(lambda file: int(file.readinto(view)))  # type: ignore[attr-defined]  # files for reading have it
        self._at += count
        return count

    def close(self) -> None:
        self._let_go()
        super().close()

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._file = as_os_error(self._open)
            if self._at:
                self._file.seek(self._at)
        return self._file

    def _tried(self, act: Callable[[IO[bytes]], int]) -> int:
        """Do something with the file; one that has failed is not used again."""

        def once() -> int:
            try:
                return as_os_error(lambda: act(self._opened()))
            except OSError:
                self._let_go()
                raise

        return self._retry(once)

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:  # nothing was written
                logger.debug("A file that was read could not be closed: %s", error)


def opened(storage: Storage, path: str, retry: Retry, *, checked: bool = False) -> io.BufferedReader:
    """Return a file of a storage for reading; ``checked`` as the storage has it."""
    return io.BufferedReader(_File(lambda: storage.read(path, checked=checked), retry), BUFFER)


def as_os_error(act: Callable[[], T]) -> T:
    """Return the result of ``act``; raise the own errors of a file system (object stores have some) as OSError."""
    try:
        return act()
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error
