"""Notices that the files of imported modules have changed: a fork would run other code than a fresh worker."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import TypeAlias

Stamp: TypeAlias = "tuple[int, int, int] | None"
"""(inode, size, time of the last change in nanoseconds) of a file or folder; None where there is none."""

LOOK_MAX_SECONDS = 0.1  # for one search; it takes one or two milliseconds, and more on a network file system


class Sources:
    """The files of imported modules, as they were when they were recorded.

    There are thousands, and a look at each would take as long as a fork. So of installed libraries it looks at the
    folders, and at the files of a changed folder, as pip and most editors change it. A file written in place is missed.
    """

    def __init__(self, roots: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._roots = tuple(root + os.sep for root in roots)
        self._folders: dict[str, Stamp] = {}
        self._files: dict[str, dict[str, Stamp]] = defaultdict(dict)

    def record(self) -> None:
        """Record the modules that were imported since the last call."""
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if isinstance(path, str) and os.path.isabs(path):
                folder = os.path.dirname(path)
                if path not in self._files[folder]:
                    self._files[folder][path] = _stamp(path)
                if folder.startswith(self._roots):
                    self._folders.setdefault(folder, _stamp(folder))

    def find_changed(self) -> str | None:
        """Return a file that has changed; None if none was found within ``LOOK_MAX_SECONDS``.

        The outermost folders come first, since an upgrade changes those.
        """
        deadline = self._clock() + LOOK_MAX_SECONDS
        for folder, files in sorted(self._files.items(), key=lambda item: len(item[0])):
            if self._clock() > deadline:
                break
            now = _stamp(folder) if folder in self._folders else None
            if now is not None and now == self._folders[folder]:
                continue
            for path, before in files.items():
                if _stamp(path) != before:
                    return path
            if now is not None:
                self._folders[folder] = now
        return None


def _stamp(path: str) -> Stamp:
    """Return the stamp of a path, or of the archive that it leads into."""
    while True:
        try:
            found = os.stat(path)
        except NotADirectoryError:
            path = os.path.dirname(path)
        except OSError:
            return None
        else:
            return found.st_ino, found.st_size, found.st_mtime_ns
