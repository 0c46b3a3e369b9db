"""Modules of libraries, which alone may be imported on behalf of all workers, and changes of imported files."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import site
import sys
import sysconfig
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

OURS = ("elastic_core", "elastic_torch", "elastic_warmstart")
"""Packages with state of one worker; a program that imports them gets them anew."""


def own_names(command: Iterable[str], directories: Iterable[str]) -> frozenset[str]:
    """Return the top-level names of the program's modules."""
    words, names = list(command), set[str]()
    if "-m" in words[:-1]:
        names.add(words[words.index("-m") + 1].partition(".")[0])
    for directory in directories:
        with contextlib.suppress(OSError):  # an archive, or missing
            names |= {entry.partition(".")[0] for entry in os.listdir(directory) if _is_module(directory, entry)}
    return frozenset(names)


def _is_module(directory: str, entry: str) -> bool:
    """Return True if this is a module or a package; a folder with data is neither."""
    modules = tuple(importlib.machinery.all_suffixes())
    return entry.endswith(modules) or os.path.exists(os.path.join(directory, entry, "__init__.py"))


def is_library(origins: Collection[str], roots: Collection[str]) -> bool:
    """Return True if a module with these origins belongs to the standard library or is installed."""
    return bool(origins) and all(
        any(os.path.realpath(origin).startswith(root + os.sep) for root in roots) for origin in origins
    )


def is_shareable(name: str, own: Collection[str]) -> bool:
    """Return True if a module may be imported on behalf of all workers: it is a library's."""
    top = name.partition(".")[0]
    if top in OURS or top in own or not all(part.isidentifier() for part in name.split(".")):
        return False
    parent = name.rpartition(".")[0]
    if parent and parent not in sys.modules:
        return False
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return False
    if spec is None:
        return False
    if spec.origin in ("built-in", "frozen"):
        return True
    origins = [spec.origin] if spec.origin is not None else list(spec.submodule_search_locations or ())
    return is_library(origins, library_roots())


@functools.cache
def find(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of a module if there is one, without an import of its parents."""
    parent = name.rpartition(".")[0]
    places = getattr(find(parent), "submodule_search_locations", None) if parent else None
    try:
        if parent:
            return importlib.machinery.PathFinder.find_spec(name, places) if places else None
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError, KeyError):  # the latter of a namespace inside of another
        return None


@functools.cache
def library_roots() -> list[str]:
    """Return the directories of the standard library and of installed ones; editable ones lie elsewhere."""
    named = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return [os.path.realpath(path) for path in (*named, *site.getsitepackages(), site.getusersitepackages()) if path]


def import_shareable(name: str, own: Collection[str]) -> bool:
    """Import a module if it may be; whether it is imported."""
    if name not in sys.modules and is_shareable(name, own):
        try:
            importlib.import_module(name)
        except BaseException:  # it needs something that is missing here; the worker imports it itself
            return False
    return name in sys.modules


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
