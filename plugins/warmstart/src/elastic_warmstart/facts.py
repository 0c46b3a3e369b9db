"""Collects the facts of this process that decide whether it may fork a worker. Only reads."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import os
import pkgutil
import platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping

from elastic_warmstart.checks import Facts

DEVICE = re.compile(r"/dev/(nvidia|kfd$|dri/render|accel)")
_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}.get(platform.machine())  # a system call that libc does not wrap


class Observer:
    """Collects facts."""

    def __init__(self, environment: Mapping[str, str], usual: Iterable[str]) -> None:
        self._environment = environment
        self._command, self._search, self._modules = command(), search_path(), hideable(usual)

    def facts(self) -> Facts:
        """Return the present facts."""
        return Facts(
            command=self._command,
            environment=self._environment,
            directory=os.getcwd(),
            cpus=frozenset(os.sched_getaffinity(0)),
            tasks=tasks(),
            devices=tuple(sorted(path for path, _ in open_files() if DEVICE.match(path))),
            initialised=find_initialised(),
            memory_policy=has_memory_policy(),
            shadowed=find_shadowed(self._search, self._modules),
        )


def command() -> tuple[str, ...]:
    """Return the command of this process, up to the program's arguments."""
    return tuple(sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1])


def search_path() -> str | None:
    """Return the future ``sys.path[0]``, which the interpreter sets last of all; None if there will be none.

    Source: ``_PyPathConfig_ComputeSysPathArgv0`` and ``pymain_run_python`` in CPython.
    """
    program = sys.argv[0]
    if program not in ("-c", "-m") and (os.path.isdir(program) or _is_archive(program)):
        return os.path.abspath(program)
    if getattr(sys.flags, "safe_path", False):
        return None
    return os.getcwd() if program in ("-c", "-m") else os.path.dirname(os.path.realpath(program))


def hideable(usual: Iterable[str]) -> frozenset[str]:
    """Return the imported top-level modules that a file in ``sys.path[0]`` would have hidden."""
    names = {name.partition(".")[0] for name in sys.modules} - {*usual, "__main__", "sitecustomize"}
    built_in = (importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter)
    return frozenset(name for name in names if all(importer.find_spec(name) is None for importer in built_in))


def find_shadowed(directory: str | None, modules: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """Return the modules that ``directory`` has files for, too, each with its file there."""
    if directory is None:
        return ()
    names = modules
    with contextlib.suppress(OSError):  # an archive, or nothing at all
        names = modules & {entry.partition(".")[0] for entry in os.listdir(directory)}
    finder = pkgutil.get_importer(directory) if names else None
    if finder is None:
        return ()
    if (forget := getattr(finder, "invalidate_caches", None)) is not None:
        forget()
    find: Callable[[str], importlib.machinery.ModuleSpec | None] = finder.find_spec
    found = [(name, spec) for name in sorted(names) if (spec := find(name)) is not None and spec.loader is not None]
    return tuple((name, str(spec.origin)) for name, spec in found if not _is_same(name, spec.origin))


def tasks() -> tuple[str, ...]:
    """Return the names of this process's threads, those of libraries included: Python's names where it knows them."""
    names, threading = [], sys.modules.get("threading")
    known = {} if threading is None else {thread.native_id: thread.name for thread in threading.enumerate()}
    if threading is not None:
        known[os.getpid()] = threading.main_thread().name  # in a fork it keeps the native_id of the parent's
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm", encoding="utf-8") as file:
            names.append(known.get(int(task)) or file.read().strip())
    return tuple(names)


def find_initialised() -> tuple[str, ...]:
    """Return torch's device modules that are initialised."""
    modules = [(name, sys.modules.get(name)) for name in ("torch.cuda", "torch.xpu")]
    return tuple(name for name, module in modules if module is not None and module.is_initialized())


def has_memory_policy() -> bool:
    """Return True if a NUMA memory policy is set; False if that cannot be found out."""
    if _GET_MEMPOLICY is None:
        return False
    mode = ctypes.c_int(0)
    answer = ctypes.CDLL(None).syscall(
        ctypes.c_long(_GET_MEMPOLICY), ctypes.byref(mode), None, ctypes.c_ulong(0), None, ctypes.c_ulong(0)
    )
    return bool(answer == 0 and mode.value != 0)


def open_files() -> frozenset[tuple[str, str]]:
    """Return the open files of this process and their descriptors, since files may share a name, as epolls do."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing is closed by now
            found.add((os.readlink(f"/proc/self/fd/{number}"), number))
    return frozenset(found)


def _is_archive(path: str) -> bool:
    import zipimport

    try:
        zipimport.zipimporter(path)
    except zipimport.ZipImportError:
        return False
    return True


def _is_same(name: str, origin: str | None) -> bool:
    spec = getattr(sys.modules[name], "__spec__", None)
    try:
        return origin is not None and spec is not None and os.path.samefile(spec.origin, origin)
    except (OSError, TypeError):
        return False
