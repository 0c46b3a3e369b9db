"""The decision to fork a worker from the fork server: a pure function over facts. Other workers start fresh.

A fork shares what the interpreter and the libraries have read and set up when they were started. So a worker may be
forked if that would be the same in a fresh start, and if a fork does not break it, as it breaks threads and devices.
The facts of this process are only read.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import os
import pkgutil
import platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

BINDS_THREADS = ("OMP_PROC_BIND", "OMP_PLACES", "KMP_", "GOMP_")
"""Variables (or their beginnings) by which a library, when it is loaded, ties threads to CPUs: the fork server's."""
READ_ONCE = (
    "PYTHON",  # the interpreter's own: PYTHONPATH, PYTHONHASHSEED, PYTHONWARNINGS
    *("LC_", "LANG", "TZ", "LD_", "MALLOC_", "GLIBC_TUNABLES"),
    *("OMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NUMEXPR_", "SYMPY_", "MPMATH_"),
    *("TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TORCHEXPORT_", "PYTORCH_", "TRITON_", "CXX"),
    *("AOTINDUCTOR_", "AOT_", "INDUCTOR_", "PARTITIONER_", "FAKE_ALLOW_META", "HF_", "TRANSFORMERS_"),
)
"""Variables (or their beginnings) that are read when the interpreter starts or a library is imported."""
READ_LATE = ("TORCH_NCCL_", "TORCH_FR_")  # exceptions from READ_ONCE
FORK_SAFE_THREADS = ("jemalloc_bg_thd",)
"""Threads, by name, that a fork does not need, each with its proof.

``jemalloc_bg_thd`` returns memory of jemalloc, which pyarrow brings, to the system. jemalloc's fork handlers
(``pthread_atfork``) take all of its locks before a fork, and in the child renew them and note that the thread is
missing (``background_thread_postfork_child``), so the child returns memory itself. ``tests/frameworks`` tests it.
"""
SHOWN = 3  # how many names a reason lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The state of the fork server when a worker is to be forked."""

    command: tuple[str, ...]  # how it was started, up to the program's arguments
    environment: Mapping[str, str]  # the environment that it imported with
    directory: str
    cpus: frozenset[int]
    tasks: tuple[str, ...] = ("python",)  # the names of its threads
    devices: tuple[str, ...] = ()  # device files of accelerators that it has open
    initialised: tuple[str, ...] = ()  # libraries that have set up a device: ``torch.cuda``
    memory_policy: bool = False  # whether a NUMA memory policy is set
    shadowed: tuple[tuple[str, str], ...] = ()
    """Modules that it has imported, and the files of the same names that the program would import instead."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requested worker."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str  # its working directory, '' for the fork server's
    cpus: frozenset[int] | None


def objection(facts: Facts, wanted: Wanted) -> str | None:
    """Return why this worker must not be forked from this fork server, in one line; None if it may."""
    if wanted.argv[: len(facts.command)] != facts.command:
        return f"the preloaded process is for {' '.join(facts.command)}, not for {' '.join(wanted.argv)}"
    if wanted.directory not in ("", facts.directory):
        return f"the preloaded process runs in {facts.directory}, not in {wanted.directory}"
    ours, theirs = facts.environment, wanted.environment
    if binding := sorted(name for name in theirs if name.startswith(BINDS_THREADS)):
        return f"{_listed(binding)} is set, which ties threads to CPUs while libraries are loaded"
    differing = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name) and _is_read_once(name))
    if differing:
        return f"{_listed(differing)} differs from the preloaded process's, and is read while libraries are loaded"
    if wanted.cpus not in (None, facts.cpus) and "OMP_NUM_THREADS" not in theirs:
        return "it is bound to CPUs of its own without OMP_NUM_THREADS, and libraries count CPUs while they are loaded"
    return describe_unfitness(facts)


def describe_unfitness(facts: Facts) -> str | None:
    """Return why no worker must be forked from this process, in one line; None if workers may be."""
    if (reason := beside_main(facts.tasks)) is not None:
        return reason
    if facts.initialised or facts.devices:
        devices = _listed(facts.initialised + facts.devices)
        return f"the preloaded process has set up a device, which a fork cannot use ({devices})"
    if facts.memory_policy:
        return "a NUMA memory policy is set, and the preloaded process's memory was placed by it"
    if facts.shadowed:
        name, path = facts.shadowed[0]
        return f"{path} takes the place of the preloaded module {name}"
    return None


def beside_main(names: Sequence[str]) -> str | None:
    """Return why a process with threads of these names must not be forked, in one line; None if it may.

    A lock that a thread holds would never be released in a fork.
    """
    tasks = [name for name in names if name not in FORK_SAFE_THREADS]
    if len(tasks) <= 1:
        return None
    return f"the preloaded process has {len(tasks)} threads, which a fork does not get ({_listed(tasks)})"


def _is_read_once(name: str) -> bool:
    return name.startswith(READ_ONCE) and not name.startswith(READ_LATE)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"


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
