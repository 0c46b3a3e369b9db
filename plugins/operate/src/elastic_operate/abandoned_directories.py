"""The temporary directories of agents that were killed together with their wardens: which are removed, and how."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

from elastic_core.agent import MARK, PREFIX, names_free_slot

ENTRIES_MAX = 10_000  # how many entries of the directory for temporary files are looked at
REMOVED_MAX = 8  # how many directories one agent removes; the next agent removes more


def remove_abandoned(places: Iterable[Path]) -> list[Path]:
    """Remove a few marked directories in these places whose slot is free, and return them.

    Only directories to which this user alone has access are looked into. No symbolic link is followed. If two agents do
    this at once, the one that removes the mark removes the directory.
    """
    removed: list[Path] = []
    for place in places:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            ours = (Path(entry) for entry in islice(entries, ENTRIES_MAX) if entry.name.startswith(PREFIX))
            removed += islice(filter(_remove_if_abandoned, ours), REMOVED_MAX - len(removed))
    return removed


def temporary_directories() -> list[Path]:
    """Return the directory for temporary files, and the one that this process has used so far, if that is another.

    ``tempfile.gettempdir()`` is not called: it writes a file, and if the disk is full it chooses another directory for
    the life of the process.
    """
    named = next(filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))), "/tmp")
    return [*dict.fromkeys(Path(os.fsdecode(place)) for place in (named, tempfile.tempdir or named))]


def _remove_if_abandoned(path: Path) -> bool:
    """Remove one directory if only this user has access to it and no process holds the slot that its mark names."""
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError, RecursionError, ValueError):
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK)
        stack.callback(os.close, directory)
        mark = os.open(MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        stack.callback(os.close, mark)
        is_ours = _is_private(os.fstat(directory), stat.S_ISDIR) and _is_private(os.fstat(mark), stat.S_ISREG)
        if not is_ours or not names_free_slot(os.read(mark, 1000).decode(errors="replace")):
            return False
        if not os.path.samestat(os.fstat(mark), os.stat(MARK, dir_fd=directory, follow_symlinks=False)):
            return False  # another agent uses the directory since the mark was read
        os.unlink(MARK, dir_fd=directory)  # FileNotFoundError: another agent has just done so
        shutil.rmtree(path, ignore_errors=True)  # follows no links, either
        return True
    return False


def _is_private(found: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    """Return True if a file is of a kind, belongs to this user, and gives no other user access."""
    return is_kind(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077
