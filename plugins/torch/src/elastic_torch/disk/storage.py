"""The storage of checkpoints: a directory that a process can die over at any moment, or a URL.

Everything in a directory is small and durable: what a function has written, it has fsynced, the directory's entry as
well. All paths are relative to the root and use ``/``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from elastic_core.errors import UsageError
from elastic_torch.disk.manifest import NAME, FileSum
from elastic_torch.disk.retry import as_os_error
from elastic_torch.version import parse

if TYPE_CHECKING:
    from typing_extensions import Buffer


STAGING = ".saving-"
REMOVING = ".removing-"
DAMAGED = "damaged"  # the folder of damaged checkpoints, which are neither read nor removed
LATEST = "latest"
BLOCK = 1 << 20
SHARED = "ELASTIC_SHARED_CHECKPOINTS"
PATIENCE = 10.0  # seconds to wait for a lock whose holder is about to end
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class _Sink(io.RawIOBase):
    """A new file that knows the size and the SHA-256 of what it was given. Closing it makes it durable.

    ``put`` writes some of what it is given, and says how many bytes. ``finish`` is called once, when the file is
    closed, with whether it is to be kept.
    """

    def __init__(self, put: Callable[[memoryview], int], finish: Callable[[bool], None]) -> None:
        super().__init__()
        self._put = put
        self._finish = finish
        self._hash = hashlib.sha256()
        self._size = 0
        self._keep = True

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data).cast("B")
        written = self._put(view)
        self._hash.update(view[:written])
        self._size += written
        return written

    def abandon(self) -> None:
        """Close it without making anything durable."""
        self._keep = False
        self.close()

    def close(self) -> None:
        """Make it durable and close it; a second time does nothing."""
        if not self.closed:
            try:
                self._finish(self._keep)
            finally:
                super().close()

    def sum(self) -> FileSum:
        """Return what has been written."""
        return FileSum(self._size, self._hash.hexdigest())


_IN_PROCESS = threading.Lock()  # locks of files are between processes


class LocalStorage:
    """A directory, of this host or shared. Needs atomic renames and hard links; uses POSIX locks if there are any.

    Its methods are what the disk tier needs of a place; ``UrlStorage`` has the same ones. Errors are ``OSError``.
    """

    def __init__(self, root: Path, *, shared: bool = False) -> None:
        self._root = root.absolute()
        self.root = str(self._root)
        self._shared = shared
        self._own: os.stat_result | None = None
        """A file that this process has made there, as the file system shows it."""

    def create(self) -> None:
        """Make the root, where it is missing."""
        missing = [path for path in (self._root, *self._root.parents) if not path.exists()]
        self._root.mkdir(parents=True, exist_ok=True)
        for path in missing:
            _sync(path.parent)

    def path(self, name: str) -> str:
        """Return the whole path or URL of a name below the root."""
        return str(self._root / name)

    def folders(self) -> list[str]:
        """Return the names in the root that may be folders; no unfinished checkpoint is named as a complete one."""
        return os.listdir(self._root)  # the root has to be there: a disk that is gone is not an empty one

    def unfinished(self) -> list[str]:
        """Return the folders of checkpoints that are being written or removed, or were when their writer died."""
        return [name for name in self.folders() if name.startswith((STAGING, REMOVING))]

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none where there is no such folder."""
        try:
            return os.listdir(self._root / folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, path: str) -> int | None:
        """Return the bytes of a file; None if there is no file."""
        try:
            return os.stat(self._root / path).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, path: str, *, checked: bool = False) -> IO[bytes]:
        """Open a file, past any cache where that can be had, unless its content has just been ``checked``.

        Raises:
            OSError: It cannot be read; or, of a checkpoint, another user owns it or can change it.
        """
        file = open(self._root / path, "rb")  # noqa: SIM115  (the caller closes it)
        if not self._shared and parse(path.partition("/")[0]) is not None:
            try:
                self._check_owner(os.fstat(file.fileno()), path)
            except BaseException:
                file.close()
                raise
        if not checked:
            with contextlib.suppress(OSError):  # what is read is then what the disk has; some filesystems do not know
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file

    def _check_owner(self, seen: os.stat_result, path: str) -> None:
        """Refuse a file that another user owns, or that all users can write: its writer could run code here.

        The users of the file's group are trusted: a group shares checkpoints by its umask.
        A file server may show other owners and modes than were set. So a file counts as this user's also if one that
        this process makes there is shown in the same way.
        """
        known, mode = {os.geteuid(), 0}, stat.S_IWOTH
        if seen.st_uid not in known or seen.st_mode & mode:
            with contextlib.suppress(OSError):
                own = self._own = self._own or self._probe()
                known, mode = {*known, own.st_uid}, mode & ~own.st_mode
        fault = ""
        if seen.st_uid not in known:
            fault = f"{path} belongs to another user (uid {seen.st_uid})"
        elif seen.st_mode & mode:
            fault = f"every user can change {path} (mode {stat.S_IMODE(seen.st_mode):04o})"
        if fault:
            raise PermissionError(
                f"{fault}, and who writes a checkpoint can run code in the job that loads it; if these users share it, "
                f"set {SHARED}=1"
            )

    def _probe(self) -> os.stat_result:
        """Return how the file system shows a file that this process makes."""
        path = self._root / f".owner-{secrets.token_hex(4)}.tmp"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)
            os.unlink(path)

    def write(self, path: str) -> _Sink:
        """Create a file."""
        descriptor = os.open(self._root / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

        def finish(keep: bool) -> None:
            try:
                if keep:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

        return _Sink(lambda data: os.write(descriptor, data), finish)

    def put(self, path: str, data: bytes) -> bool:
        """Create a file with this content, whole or not at all; False where there is one already."""
        temporary = f"{path}.{secrets.token_hex(4)}.tmp"
        try:
            with io.BufferedWriter(self.write(temporary)) as file:
                file.write(data)
            os.link(self._root / temporary, self._root / path)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._root / temporary)
        _sync((self._root / path).parent)
        return True

    def unlink(self, path: str) -> None:
        """Remove a file."""
        os.unlink(self._root / path)

    def staging(self, name: str, nonce: str) -> str:
        """Return the folder in which the checkpoint ``name`` is to be written."""
        return f"{STAGING}{name}-{nonce}"

    def make(self, folder: str) -> None:
        """Create a folder."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._root / folder)
        _sync(self._root)

    def adopt(self, source: str, target: str) -> None:
        """Let a file be in another folder, too."""
        os.link(self._root / source, self._root / target)

    def publish(self, staging: str, name: str) -> str:
        """Publish a folder as checkpoint ``name``; return the folder's name then, or raise FileExistsError if taken."""
        _sync(self._root / staging)
        try:
            os.rename(self._root / staging, self._root / name)  # onto a folder with files in it: refused, atomically
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise FileExistsError(errno.EEXIST, "there is one already", name) from error
            raise
        _sync(self._root)
        return name

    def remove(self, folder: str) -> None:
        """Remove a folder, so that a rest of it is not taken for a checkpoint; a missing one is fine."""
        aside = self._root / folder
        if not folder.startswith(REMOVING):  # a straggler may be about to publish it: from here on it cannot
            aside = self._root / f"{REMOVING}{folder.removeprefix(STAGING)}-{secrets.token_hex(4)}"
            try:
                os.rename(self._root / folder, aside)
            except FileNotFoundError:
                return
            _sync(self._root)
        shutil.rmtree(aside, ignore_errors=True)

    def set_aside(self, folder: str) -> str | None:
        """Move a folder to where it is not taken for a checkpoint; its new path, or None where nothing can be moved."""
        self.make(DAMAGED)
        target = self._root / DAMAGED / folder
        if os.path.lexists(target):
            target = target.with_name(f"{folder}-{secrets.token_hex(4)}")
        os.rename(self._root / folder, target)
        _sync(target.parent)
        _sync(self._root)
        return str(target)

    def pointed(self) -> str | None:
        """Return the folder that ``latest`` names, which need not be there; None where there is no ``latest``."""
        return os.readlink(self._root / LATEST) if os.path.islink(self._root / LATEST) else None

    def point(self, folder: str | None) -> None:
        """Let ``latest`` name this folder; None: there is no ``latest`` any more."""
        if self.pointed() == folder:
            return
        if folder is None:
            os.unlink(self._root / LATEST)
            _sync(self._root)
            return
        temporary = self._root / f".{LATEST}-{secrets.token_hex(4)}.tmp"
        os.symlink(folder, temporary)
        try:
            os.replace(temporary, self._root / LATEST)
        except OSError:  # a directory is there
            os.unlink(temporary)
            raise
        _sync(self._root)

    @contextlib.contextmanager
    def guard(self) -> Iterator[bool]:
        """Lock ``latest`` meanwhile. False: there are no locks here, or another process does not release it."""
        with _IN_PROCESS, open(self._root / ".lock", "ab") as file:
            yield _lock(file, fcntl.LOCK_EX)

    def hold(self, path: str) -> contextlib.ExitStack:
        """Show that this process lives, until it dies or the stack is closed."""
        # Not flock: its locks go on in a forked data loader. These end with the process, whatever it leaves behind.
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open(self._root / path, "a+b"))
            _lock(file, fcntl.LOCK_SH)
            return stack.pop_all()

    def held(self, path: str) -> bool:
        """Return True if another process holds it, also after ``PATIENCE``. False where that cannot be known."""
        try:
            file = open(self._root / path, "r+b")  # noqa: SIM115  (closed below)
        except FileNotFoundError:
            return False
        with file:
            return not _lock(file, fcntl.LOCK_EX, unknown=True)


def _lock(file: IO[Any], how: int, *, unknown: bool = False) -> bool:
    """Take a lock within ``PATIENCE`` seconds; ``unknown`` where the filesystem has none. Closing the file drops it."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.lockf(file, how | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in NO_LOCKS:
                return unknown
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)  # a lock that is waited for in the kernel cannot be given up
        else:
            return True


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


Storage: TypeAlias = "LocalStorage | UrlStorage"


@contextlib.contextmanager
def created(storage: Storage, path: str, sums: dict[str, FileSum]) -> Iterator[io.BufferedWriter[_Sink]]:
    """Yield a new file that is durable, and whose sum is known, at the end."""
    sink = storage.write(path)
    stream = io.BufferedWriter(sink, BLOCK)
    try:
        yield stream
        stream.close()
    except BaseException:
        sink.abandon()
        raise
    sums[path.rsplit("/", 1)[-1]] = sink.sum()


def open_storage(directory: str | os.PathLike[str], *, shared: bool = False) -> Storage:
    """Return the storage of a directory, or of any URL that fsspec knows. Nothing is read or written.

    ``shared`` is as of :class:`LocalStorage`; at a URL, the service says who may write.
    """
    text = os.fspath(directory)
    scheme, separator, rest = text.partition("://")
    if separator and scheme not in ("file", "local"):
        return UrlStorage(text)
    return LocalStorage(Path(rest if separator else text), shared=shared)


class UrlStorage:
    """The storage at one URL, by fsspec: an object store, or whatever else it knows.

    Its methods are those of ``LocalStorage``, whose docstrings say what they do. Nothing can be renamed atomically
    there, nor locked. So a checkpoint is written under its final name from the start, with a random suffix, and counts
    once its manifest is there, which is written last: an object appears whole or not at all. There is no ``latest``:
    the names say which one is the newest, and an object that many overwrite could go back. Two savers of one step may
    both end up complete; readers take the one whose suffix sorts first.
    """

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise UsageError(
                f"Checkpoints at {url!r} need fsspec, which is not installed.", hint="pip install fsspec"
            ) from error
        try:
            self._fs, root = url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise UsageError(f"{url!r} is no place for checkpoints: {error}") from error
        self._root = str(root).rstrip("/")
        self.root = url.rstrip("/")

    def create(self) -> None:  # noqa: D102  (as LocalStorage's; so are all below)
        as_os_error(lambda: self._fs.makedirs(self._root, exist_ok=True))

    def path(self, name: str) -> str:  # noqa: D102
        return f"{self.root}/{name}"

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/")

    def folders(self) -> list[str]:  # noqa: D102
        return [name for name in self.names("") if parse(name) is None or self._complete(name)]

    def unfinished(self) -> list[str]:  # noqa: D102
        return [name for name in self.names("") if parse(name) is not None and not self._complete(name)]

    def _complete(self, folder: str) -> bool:
        return self.size(f"{folder}/{NAME}") is not None

    def names(self, folder: str) -> list[str]:  # noqa: D102
        try:
            paths = as_os_error(lambda: self._fs.ls(self._at(folder), detail=False))
            return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, path: str) -> int | None:  # noqa: D102
        try:
            return int(as_os_error(lambda: self._fs.size(self._at(path))))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, path: str, *, checked: bool = False) -> IO[bytes]:  # noqa: D102
        file: IO[bytes] = self._fs.open(self._at(path), "rb")
        return file

    def write(self, path: str) -> _Sink:  # noqa: D102
        file = self._fs.open(self._at(path), "wb")

        def put(data: memoryview) -> int:
            file.write(data)
            return len(data)

        def finish(keep: bool) -> None:
            if keep:
                file.close()
            else:
                with contextlib.suppress(Exception):  # what is left there is listed in no manifest
                    file.discard()

        return _Sink(put, finish)

    def put(self, path: str, data: bytes) -> bool:  # noqa: D102
        if self.size(path) is not None:
            return False
        with io.BufferedWriter(self.write(path)) as file:
            file.write(data)
        return True

    def staging(self, name: str, nonce: str) -> str:  # noqa: D102
        return f"{name}-{nonce}"

    def make(self, folder: str) -> None:  # noqa: D102
        self._fs.makedirs(self._at(folder), exist_ok=True)

    def adopt(self, source: str, target: str) -> None:  # noqa: D102
        self._fs.copy(self._at(source), self._at(target))

    def publish(self, staging: str, name: str) -> str:  # noqa: D102
        others = sorted(folder for folder in self.folders() if parse(folder) == parse(name))
        if others[:1] != [staging]:
            raise FileExistsError(f"{others[0] if others else name} is there already")
        return staging

    def remove(self, folder: str) -> None:  # noqa: D102
        # The manifest first: without it the rest is no checkpoint.
        for path in (f"{folder}/{NAME}", folder):
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm(self._at(path), recursive=path == folder)

    def set_aside(self, folder: str) -> str | None:  # noqa: D102
        return None

    def pointed(self) -> str | None:  # noqa: D102
        return None

    def point(self, folder: str | None) -> None:
        """Do nothing: names of folders say which one is the newest."""

    @contextlib.contextmanager
    def guard(self) -> Iterator[bool]:  # noqa: D102
        yield False

    def hold(self, path: str) -> contextlib.ExitStack:  # noqa: D102
        return contextlib.ExitStack()

    def held(self, path: str) -> bool:  # noqa: D102
        return False
