"""Which modules may be imported on behalf of all workers: those of libraries, and none of the program's."""

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
from collections.abc import Collection, Iterable

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


def outside_libraries(names: Iterable[str], roots: Collection[str]) -> list[str]:
    """Return the modules, out of these imported ones, that do not lie under the libraries' ``roots``."""
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    return [name for name, file in files.items() if isinstance(file, str) and not is_library([file], roots)]


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
