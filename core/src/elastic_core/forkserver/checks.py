"""Whether a worker may be forked from the fork server: a pure function over facts. What it objects to starts fresh.

A fork shares with the fork server what the interpreter and the libraries read and set up when they were started. So it
may be had where that would have come out the same, and where nothing was set up that does not survive a fork: threads,
devices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

BINDS_THREADS = ("OMP_PROC_BIND", "OMP_PLACES", "KMP_", "GOMP_")
"""Variables (or their beginnings) that tie threads to CPUs when a library is loaded: then to the fork server's."""
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
READ_LATE = ("TORCH_NCCL_",)  # exceptions from that
FORK_SAFE_THREADS = ("jemalloc_bg_thd",)
"""Threads, by name, that a fork may do without, each with its proof.

``jemalloc_bg_thd`` gives memory back to the system behind jemalloc, which pyarrow brings along. jemalloc registers fork
handlers (``pthread_atfork``): before a fork they take all of its locks, the thread's among them, and in the child they
renew them and note that there is no such thread (``background_thread_postfork_child``). The child gives memory back by
itself. (``tests/frameworks`` forks with it and allocates in the child.)
"""
SHOWN = 3  # how many names a reason lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What there is to know of the fork server when a worker is to be forked."""

    command: tuple[str, ...]  # how it was started, up to the program's arguments
    environment: Mapping[str, str]  # the environment that it imported with
    directory: str
    cpus: frozenset[int]
    tasks: tuple[str, ...] = ("python",)  # the names of its threads
    devices: tuple[str, ...] = ()  # device files of accelerators that it has open
    initialised: tuple[str, ...] = ()  # libraries that have set up a device: ``torch.cuda``
    memory_policy: bool = False  # whether a NUMA memory policy is set
    shadowed: tuple[tuple[str, str], ...] = ()
    """Modules that it has, and the files of the same names that the program would import instead."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The worker that was asked for."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str  # its working directory, '' for the fork server's
    cpus: frozenset[int] | None


def objection(facts: Facts, wanted: Wanted) -> str | None:
    """Why this worker must not be forked from this fork server, in one line; None when it may."""
    if wanted.argv[: len(facts.command)] != facts.command:
        return f"the preloaded process is for {' '.join(facts.command)}, not for {' '.join(wanted.argv)}"
    if wanted.directory not in ("", facts.directory):
        return f"the preloaded process runs in {facts.directory}, not in {wanted.directory}"
    return _of_the_environment(facts, wanted) or describe_unfitness(facts)


def _of_the_environment(facts: Facts, wanted: Wanted) -> str | None:
    if binding := sorted(name for name in wanted.environment if name.startswith(BINDS_THREADS)):
        return f"{_listed(binding)} is set, which ties threads to CPUs while libraries are loaded"
    if differing := sorted(name for name in _differing(facts.environment, wanted.environment) if _is_read_once(name)):
        return f"{_listed(differing)} differs from the preloaded process's, and is read while libraries are loaded"
    if wanted.cpus not in (None, facts.cpus) and "OMP_NUM_THREADS" not in wanted.environment:
        return "it is bound to CPUs of its own without OMP_NUM_THREADS, and libraries count CPUs while they are loaded"
    return None


def describe_unfitness(facts: Facts) -> str | None:
    """Why nobody must be forked from this process, in one line; None when that may be."""
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
    """Why not even what needs no device must be forked from it: a lock that a thread holds would never be released."""
    return beside_main(facts.tasks)


def beside_main(names: Sequence[str]) -> str | None:
    """Why a process with threads of these names must not be forked, in one line; None when it may."""
    tasks = [name for name in names if name not in FORK_SAFE_THREADS]
    if len(tasks) <= 1:
        return None
    return f"the preloaded process has {len(tasks)} threads, which a fork does not get ({_listed(tasks)})"


def _differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    return [name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)]


def _is_read_once(name: str) -> bool:
    return name.startswith(READ_ONCE) and not name.startswith(READ_LATE)


def _listed(names: Collection[str] | Sequence[str]) -> str:
    shown = ", ".join(list(names)[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
