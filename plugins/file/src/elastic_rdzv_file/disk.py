"""Small files as records: written whole or not at all, first come first served, read within bounds.

Made for directories that several hosts mount. Over NFS, an exclusive create can be reported wrongly when its reply is
lost, so :func:`publish` links a finished file into place, as open(2) advises; and a client may remember for half a
minute that a file is *not* there, so absence is believed only after :func:`revalidate`, which asks the server.

Functions raise OSError for what the file system refuses; :func:`store_errors` turns these into errors of a backend.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar
from urllib.parse import quote

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.rendezvous import hex_digest

PLANTED = "Something else writes in the rendezvous directory; use one that only this job's user can write to."
DELETED = "Another program deletes files of a running job; leave its directory alone."

_NAME_LENGTH = 100  # characters of a name, to which a serial and a revision come: file systems take 255
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a planted FIFO must not block us either
_WRITE_FLAGS = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_T = TypeVar("_T")


def safe_name(text: str) -> str:
    """Return a file name for any text: readable, without leading dots or slashes, different for different texts."""
    name = quote(text, safe="", errors="surrogateescape") or "%"
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _NAME_LENGTH:
        name = f"{name[:40]}%%{hex_digest(name, 40)}"
    return name


def publish(scratch: str, target: str, content: bytes, *, durable: bool = False) -> bool:
    """Make the file ``target``, complete from its first instant; False, and nothing is changed, when it is there.

    ``scratch`` is a directory on the same file system that no other process reads. A ``durable`` file survives a
    power failure once this has returned.

    Raises:
        RendezvousConnectionError: The file system has no hard links.
    """
    draft = _draft(scratch, content, durable=durable)
    try:
        if not _link(draft, target):
            return False
    finally:
        with suppress(OSError):
            os.unlink(draft)
    if durable:
        _sync(os.path.dirname(target))
    return True


def _draft(scratch: str, content: bytes, *, durable: bool = False) -> str:
    """Return a file of its own in ``scratch``, with this content."""
    draft = f"{scratch}/{os.uname().nodename}-{os.getpid()}-{os.urandom(8).hex()}"
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with open(fd, "wb", closefd=True) as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(fd)
    except OSError:
        with suppress(OSError):
            os.unlink(draft)
        raise
    return draft


def _link(draft: str, target: str) -> bool:
    try:
        os.link(draft, target)
    except OSError as exc:
        if os.lstat(draft).st_nlink > 1:
            return True  # it was made, and only the reply was lost
        if exc.errno == errno.EEXIST:
            return False
        if exc.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise RendezvousConnectionError(
                f"The file system of {os.path.dirname(target)!r} has no hard links ({exc.strerror}).",
                hint="Use a directory on a local disk, on NFS or on a cluster file system.",
                lasting=True,
            ) from exc
        raise
    return True


def republish(scratch: str, target: str, content: bytes) -> None:
    """Replace a file, or make it, at one instant: who reads it finds all of the old content or all of the new."""
    draft = _draft(scratch, content)
    try:
        os.rename(draft, target)
    except OSError:
        with suppress(OSError):
            os.unlink(draft)
        raise


def fetch(path: str, limit: int) -> bytes | None:
    """Return the content of a file of at most ``limit`` bytes, or None when there is none.

    Raises:
        RendezvousStateError: It is larger, or no plain file.
    """

    def read(fd: int) -> bytes:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise RendezvousStateError(f"{path!r} is not a plain file.", hint=PLANTED)
        content, size = b"", min(status.st_size, limit) + 1
        while len(content) <= limit:
            content += (more := os.read(fd, size))
            if len(more) < size:
                break
        if len(content) > limit:
            size = max(status.st_size, len(content))
            raise RendezvousStateError(f"{path!r} has {size} bytes; at most {limit} are read.", hint=PLANTED)
        return content

    return _using(path, _READ_FLAGS, read)


def overwrite(path: str, content: bytes) -> bool:
    """Overwrite the beginning of a file in one write; False when there is none."""
    return _using(path, _WRITE_FLAGS, lambda fd: os.pwrite(fd, content, 0)) is not None


def present(path: str) -> bool:
    """Return True if a file of this name exists."""
    for _ in range(2):
        with suppress(FileNotFoundError):
            os.lstat(path)
            return True
        revalidate(os.path.dirname(path))
    return False


def discard(path: str) -> bool:
    """Delete a file; False when there was none."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def revalidate(directory: str) -> None:
    """Open a directory: proof that it is there, and over NFS the question to the server that refreshes its content."""
    os.close(os.open(directory, _DIRECTORY_FLAGS))


def _sync(directory: str) -> None:
    fd = os.open(directory, _DIRECTORY_FLAGS)
    try:
        os.fsync(fd)
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # some network file systems write names at once, and cannot be asked to
            raise
    finally:
        os.close(fd)


def _using(path: str, flags: int, use: Callable[[int], _T]) -> _T | None:
    """Return what ``use`` makes of the opened file; None when there is none, or another host deletes it meanwhile.

    Closing is part of it: over NFS that is what sends a write.
    """
    for _ in range(2):
        try:
            fd = os.open(path, flags)
            try:
                return use(fd)
            finally:
                os.close(fd)
        except OSError as exc:
            if exc.errno not in (errno.ENOENT, errno.ESTALE):
                raise
        revalidate(os.path.dirname(path))
    return None


class Numbered:
    """A directory of files named 1, 2, 3, …, which we never delete. Connections share this object, and its memory."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._last = 0

    def path(self, number: int) -> str:
        """Return the file of a number."""
        return f"{self.directory}/{number:08d}"

    def last(self) -> int:
        """Return the greatest number there is, 0 for none; from the second call on at one cost, however many there are.

        It can be a smaller one than before, if files were deleted, or an older copy was put in their place.
        """
        last = self._last
        if last == 0 or not present(self.path(last)):
            last = max((int(name) for name in os.listdir(self.directory) if name.isdecimal()), default=0)
        while present(self.path(last + 1)):
            last += 1
        self._last = last
        return last


_REMEDIES = {
    errno.ENOSPC: "Free some space there, or use another directory.",
    errno.EDQUOT: "Free some of this user's quota there, or use another directory.",
    errno.EACCES: "Let this user read and write there, or use another directory.",
    errno.EPERM: "Let this user read and write there, or use another directory.",
    errno.EROFS: "It is mounted read-only; use another directory.",
    errno.ENOENT: "It was there before: do not delete a running job's directory, and keep it mounted.",
    errno.ESTALE: "It was there before: do not delete a running job's directory, and keep it mounted.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
    errno.ENFILE: "This host has no file descriptors left; end what uses them.",
}


@contextmanager
def store_errors(directory: str) -> Iterator[None]:
    """Turn what the file system says about the store in ``directory`` into what a backend may raise."""
    try:
        yield
    except OSError as exc:
        where = str(exc.filename or directory)
        if exc.errno == errno.ELOOP:
            raise RendezvousStateError(f"{where!r} is a symbolic link, which is not followed.", hint=PLANTED) from exc
        raise RendezvousConnectionError(
            f"The rendezvous directory does not work: {where!r}: {exc.strerror}.",
            hint=_REMEDIES.get(exc.errno or 0, "Check the disk or the mount."),
            lasting=exc.errno in (errno.EACCES, errno.EPERM, errno.EROFS),
        ) from exc
