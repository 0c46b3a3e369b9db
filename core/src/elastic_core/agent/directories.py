"""Temporary directories: each is locked while its node lives, and the next agent removes those that nobody holds.

An agent removes its own at its end, and its warden does when the agent was killed. Where both are killed at once, a
directory stays. It has a mark, a file that its node holds locked (``flock``); the kernel drops the lock with the last
process that holds it. A mark without a lock is the proof that all of them are gone.

The lock lies with the node's slot: a message to the slot's own socket, which nobody reads, carries the descriptor. So
it is held by whoever holds the slot: the agent, its warden, its workers, and what those have started (rule S8).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from elastic_core.host.identity import boot_id

PREFIX = "elastic_"
"""What the names of all of them begin with."""
MARK = ".elastic-mark"
"""The file in a directory that says that it may be removed when nobody holds it locked. It holds the boot's id."""
ENTRIES_MAX = 10_000
"""How many entries of the directory for temporary files are looked at."""
REMOVED_MAX = 8
"""How many directories one agent removes. The next agent goes on."""


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
    """The boot's id: locks are seen by the processes of one kernel only, as far as file systems go.

    Raises:
        OSError: The system does not say.
    """
    if not (text := boot_id()):
        raise OSError("the boot has no id")
    return text.encode()
