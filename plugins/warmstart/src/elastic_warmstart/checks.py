"""The decision to fork a worker from the fork server: a pure function over facts. Other workers start fresh.

A fork shares what the interpreter and the libraries have read and set up when they were started. So a worker may be
forked if that would be the same in a fresh start, and if a fork does not break it, as it breaks threads and devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BINDS_THREADS = ("OMP_PROC_BIND", "OMP_PLACES", "KMP_", "GOMP_")
"""Variables (or their beginnings) by which a library, when it is loaded, ties threads to CPUs: the fork server's."""
READ_ONCE = (
    "PYTHON",  # the interpreter's own: PYTHONPATH, PYTHONHASHSEED, PYTHONWARNINGS
    "LC_",
    "LANG",
    "TZ",
    "LD_",
    "MALLOC_",
    "GLIBC_TUNABLES",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "GOTO_",
    "BLIS_",
    "NUMEXPR_",
    "TORCH_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TORCHEXPORT_",
    "AOTINDUCTOR_",
    "AOT_",
    "INDUCTOR_",
    "PARTITIONER_",
    "FAKE_ALLOW_META",
    "CXX",
    "SYMPY_",
    "MPMATH_",
    "PYTORCH_",
    "TRITON_",
    "HF_",
    "TRANSFORMERS_",
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
    if (reason := describe_threads(facts)) is not None:
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


def describe_threads(facts: Facts) -> str | None:
    """Return why not even a service must be forked from it: a lock that a thread holds would never be released."""
    return beside_main(facts.tasks)


def beside_main(names: Sequence[str]) -> str | None:
    """Return why a process with threads of these names must not be forked, in one line; None if it may."""
    tasks = [name for name in names if name not in FORK_SAFE_THREADS]
    if len(tasks) <= 1:
        return None
    return f"the preloaded process has {len(tasks)} threads, which a fork does not get ({_listed(tasks)})"


def _is_read_once(name: str) -> bool:
    return name.startswith(READ_ONCE) and not name.startswith(READ_LATE)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
