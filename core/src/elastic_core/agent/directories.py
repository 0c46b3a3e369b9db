"""The directories of an agent: for the logs and error files of a run, and temporary ones.

An agent removes its temporary directories at its end; if it was killed, its warden does. If both are killed at once, a
directory stays, and the next agent removes it: the directory has a mark, a file that the processes of its node hold
locked (``flock``). The kernel drops the lock with the last of these processes, so a mark without a lock proves that
all of them are gone.

The descriptor of the lock is kept with the node's slot, in a message to the slot's socket that is never received. So
the lock is held as long as the slot is: by the agent, its warden, its workers, and the processes that these have
started (rule S8).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from elastic_core.config.run import RunConfig
from elastic_core.errors import UsageError
from elastic_core.host.identity import boot_id

PREFIX = "elastic_"  # of the names of temporary directories
MARK = ".elastic-mark"
"""The file in a directory that says that it may be removed when nobody holds it locked. It holds the boot's id."""
ENTRIES_MAX = 10_000  # how many entries of the directory for temporary files are looked at
REMOVED_MAX = 8
"""How many directories one agent removes. The next agent goes on."""


def make_log_dir(path: Path) -> None:
    """Make the directory for logs, for this user alone, or find that there can be none while nothing has started yet.

    Raises:
        UsageError: It cannot be made, or not be written to.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"--log_dir {str(path)!r} cannot be made: {exc.strerror}.") from exc
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"--log_dir {str(path)!r} is not writable.")


def log_directory(config: RunConfig, run_uid: str) -> tuple[Path, bool]:
    """Where this run's logs and error files go, and whether that is removed at the end: nobody asked for logs."""
    name = f"{urllib.parse.quote(config.rdzv_id, safe='')}_{run_uid}"
    if config.log_dir is not None:
        return config.log_dir / name, False
    filtered = config.local_ranks_filter is not None or config.stdout_filters or config.stderr_filters
    wanted = config.redirects.any or config.tee.any or filtered
    return Path(tempfile.mkdtemp(prefix=f"elastic_{name[:80]}_")), not wanted


@contextmanager
def marked(directory: Path, hold: Callable[[int], None]) -> Iterator[None]:
    """Let the next agent remove this directory, should everybody who holds the lock be killed before the end.

    Without a mark the directory is nobody's to remove. So there is none where the lock cannot be held.

    Args:
        directory: A new one, for this user alone.
        hold: Keeps a descriptor open for as long as the node lives, as :meth:`Slot.keep`. Raises OSError if it cannot.
    """
    made = False
    with contextlib.suppress(OSError):
        _mark(directory, hold)
        made = True
    try:
        yield
    finally:
        if made:
            with contextlib.suppress(OSError):
                os.unlink(directory / MARK)


def remove_abandoned(parent: Path | None = None) -> list[Path]:
    """Remove marked directories that nobody holds, and say which; a few at a time.

    Only what belongs to this user, and to nobody else's access, is looked into. No symbolic link is followed. Another
    agent may do the same at the same time: the lock says which of the two removes a directory.

    Args:
        parent: Where they are; None for the directory for temporary files.
    """
    removed: list[Path] = []
    for place in _temporary_directories() if parent is None else [parent]:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for _, entry in zip(range(ENTRIES_MAX), entries, strict=False):
                if entry.name.startswith(PREFIX) and _remove_if_abandoned(entry.path):
                    removed.append(Path(entry.path))
                if len(removed) == REMOVED_MAX:
                    return removed
    return removed


def _temporary_directories() -> list[Path]:
    """Where temporary files go, and where this process has put them so far, if that is elsewhere.

    ``tempfile.gettempdir()`` is not called: it writes a file, and where the disk is full it chooses another directory
    and keeps to that.
    """
    named = next(filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))), "/tmp")
    return [*dict.fromkeys(Path(os.fsdecode(place)) for place in (named, tempfile.tempdir or named))]


def _mark(directory: Path, hold: Callable[[int], None]) -> None:
    """Lock the mark before it has its name: whoever finds it finds it locked."""
    unnamed = directory / f"{MARK}.new"
    fd = os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(fd, _this_boot())
        hold(fd)
        os.rename(unnamed, directory / MARK)
    except OSError:
        os.unlink(unnamed)
        raise
    finally:
        os.close(fd)


def _remove_if_abandoned(path: str) -> bool:
    """Remove one directory, if all of it is this user's and its mark is held by nobody."""
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK)
        stack.callback(os.close, directory)
        if not _is_private(os.fstat(directory), stat.S_ISDIR):
            return False
        mark = os.open(MARK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        stack.callback(os.close, mark)
        if not _is_private(os.fstat(mark), stat.S_ISREG):
            return False
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: somebody lives
        if os.read(mark, 64) != _this_boot():  # another host's, where they share the directory
            return False
        if not os.path.samestat(os.fstat(mark), os.stat(MARK, dir_fd=directory, follow_symlinks=False)):
            return False  # another agent has just removed it
        if not os.path.samestat(os.fstat(directory), os.lstat(path)):
            return False
        shutil.rmtree(path, ignore_errors=True)  # follows no links, either
        return True
    return False


def _is_private(found: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    """Whether a file is of a kind, belongs to this user, and lets nobody else in."""
    return is_kind(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def _this_boot() -> bytes:
    """Return the boot's id: locks are seen by the processes of one kernel only, as far as file systems go.

    Raises:
        OSError: The system does not say.
    """
    if not (text := boot_id()):
        raise OSError("the boot has no id")
    return text.encode()
