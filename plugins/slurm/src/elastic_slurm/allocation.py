"""Slurm's variables about the job, the step and the node in which this process runs, and the lists in them."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from elastic_core.errors import UsageError

INTERACTIVE_STEP = "4294967290"  # the step of the shell of an ``salloc`` that runs on the first node
DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")  # Slurm sets one to what a task may use


MAX_HOSTS = 65_536  # what a list may expand to: more is a list that is not one
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?", re.ASCII)
_PART = r"(?:[^\[\],]|\[[^\[\]]*\])+"
_LIST = re.compile(rf"{_PART}(?:,{_PART})*")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One process's place in a Slurm job."""

    job: str
    step: str | None  # the number of the step of ``srun``; None in the batch script itself, or outside of all nodes
    nodes: tuple[str, ...]  # of the step, or else of the job, in Slurm's order
    job_nodes: int  # nodes of the whole job, those of all components of a heterogeneous one
    components: int  # of a heterogeneous job; 1 for any other
    node: str | None  # this node's name; None where this process is on no node of the job
    first: bool  # whether this is the first process of the step
    tasks_here: int  # tasks of the step on this node
    array: str | None  # the id of the job array, where the job is a task of one
    array_tasks: int
    gpus: int | None  # GPUs that this task may use; None where Slurm says nothing of GPUs
    gpus_from: str  # the variable that says so
    gpus_per_task: int  # as asked for by ``--gpus-per-task``; 0 if not
    cpus_per_task: int  # as asked for by ``--cpus-per-task``; 0 if not
    order: str  # this node's place in the network, or in Slurm's order; '' where nothing tells
    order_from: str  # the variable that tells
    seconds_left: int  # until the allocation ends, when it was read; 0 where Slurm does not say
    submit_directory: str | None


def read(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation; None where the variables are not those of a Slurm job on this machine.

    Raises:
        UsageError: A variable is not what Slurm writes.
    """
    job, listed = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not job or not listed:
        return None
    step = environ.get("SLURM_STEP_ID")
    in_step = step is not None and step != INTERACTIVE_STEP and "SLURM_STEP_NODELIST" in environ
    nodes = expand(environ["SLURM_STEP_NODELIST"] if in_step else listed)
    gpus, gpus_from = _gpus(environ)
    order, order_from = _order(environ, in_step=in_step)
    ends = _number(environ, "SLURM_JOB_END_TIME")
    return Allocation(
        job=job,
        step=step if in_step else None,
        nodes=nodes,
        job_nodes=max(_job_nodes(environ, listed), len(nodes)),
        components=_number(environ, "SLURM_HET_SIZE") or 1,
        node=environ.get("SLURMD_NODENAME"),
        first=environ.get("SLURM_PROCID", "0") == "0",
        tasks_here=_tasks_here(environ) if in_step else 1,
        array=environ.get("SLURM_ARRAY_JOB_ID"),
        array_tasks=_number(environ, "SLURM_ARRAY_TASK_COUNT") or 1,
        gpus=gpus,
        gpus_from=gpus_from,
        gpus_per_task=_per_task(environ.get("SLURM_GPUS_PER_TASK", "")),
        cpus_per_task=_number(environ, "SLURM_CPUS_PER_TASK") or 0,
        order=order,
        order_from=order_from,
        seconds_left=0 if ends is None else max(0, int(ends - time.time())),
        submit_directory=environ.get("SLURM_SUBMIT_DIR"),
    )


def _order(environ: Mapping[str, str], *, in_step: bool) -> tuple[str, str]:
    """Return where this node stands among those of the job: by its switches, the step's order, or the array's."""
    if "." in (address := environ.get("SLURM_TOPOLOGY_ADDR", "")):  # without switches it is only the node's name
        return address.replace(",", "."), "SLURM_TOPOLOGY_ADDR"
    names = ("SLURM_ARRAY_TASK_ID", *(["SLURM_PROCID"] if in_step else []))
    found = {name: text for name in names if (text := environ.get(name))}
    return ".".join(found.values()), " and ".join(found)


def _job_nodes(environ: Mapping[str, str], listed: str) -> int:
    """Return the nodes of the whole job: a heterogeneous one has a list for each component."""
    components = _number(environ, "SLURM_HET_SIZE") or 0
    lists = [environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{number}", "") for number in range(components)]
    return len({node for text in lists if text for node in expand(text)} or set(expand(listed)))


def _tasks_here(environ: Mapping[str, str]) -> int:
    if not (text := environ.get("SLURM_STEP_TASKS_PER_NODE")):
        return 1
    tasks, node = counts(text), _number(environ, "SLURM_NODEID") or 0
    return tasks[node] if node < len(tasks) else tasks[0]


def _gpus(environ: Mapping[str, str]) -> tuple[int | None, str]:
    """Return the GPUs of this task, and the variable that has them.

    Without a request for GPUs none of Slurm's variables is set, and CUDA_VISIBLE_DEVICES may be the user's own.
    """
    if not any(environ.get(name) for name in ("SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")):
        return None, ""
    for name in DEVICES:
        if name in environ and environ[name] != "NoDevFiles":
            return len([device for device in environ[name].split(",") if device.strip()]), name
    return _number(environ, "SLURM_GPUS_ON_NODE"), "SLURM_GPUS_ON_NODE"


def _per_task(text: str) -> int:
    """Return the number in ``2`` or ``a100:2``; 0 for no such text."""
    last = text.rpartition(":")[2].partition(",")[0]
    return int(last) if last.isdecimal() else 0


def _number(environ: Mapping[str, str], name: str) -> int | None:
    if not (text := environ.get(name)):
        return None
    if not text.isdecimal():
        raise UsageError(f"{name}={text!r} is not a number.", hint="Slurm sets it: leave it as it was.")
    return int(text)


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a list such as ``SLURM_JOB_NODELIST``, in its order.

    Numbers keep their leading zeros, and a name may have several brackets: ``rack[0-1]n[08-10]``.

    Raises:
        UsageError: The text is no such list.
    """
    hosts: list[str] = []
    for part in _split(text):
        names = _expand_one(part, text)
        hosts += itertools.islice(names, MAX_HOSTS + 1 - len(hosts))
        if len(hosts) > MAX_HOSTS:
            raise UsageError(f"The node list {text!r} has more than {MAX_HOSTS} nodes.")
    return tuple(hosts)


def counts(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as ``SLURM_STEP_TASKS_PER_NODE``: ``2(x3),1`` is 2, 2, 2, 1.

    Raises:
        UsageError: The text is no such list.
    """
    numbers: list[int] = []
    for part in text.split(","):
        if (found := _COUNT.fullmatch(part.strip())) is None or int(found[2] or 1) > MAX_HOSTS:
            raise UsageError(f"{text!r} is no list of numbers as Slurm writes them, such as 2(x3),1.")
        numbers += [int(found[1])] * int(found[2] or 1)
    return tuple(numbers)


def _split(text: str) -> list[str]:
    """Return the parts between the commas that are in no bracket."""
    parts = [part.strip() for part in re.findall(_PART, text)]
    if not _LIST.fullmatch(text) or not all(parts):
        raise _malformed(text)
    return parts


def _expand_one(part: str, text: str) -> Iterator[str]:
    """Yield the hosts of one part: the last bracket varies fastest, as in Slurm."""
    pieces = re.split(r"\[([^\]]*)\]", part)
    choices: list[list[str]] = [
        [piece] if number % 2 == 0 else _numbers(piece, text) for number, piece in enumerate(pieces)
    ]
    return ("".join(chosen) for chosen in itertools.product(*choices))


def _numbers(inside: str, text: str) -> list[str]:
    numbers: list[str] = []
    for item in inside.split(","):
        found = _RANGE.fullmatch(item.strip())
        if found is None:
            raise _malformed(text)
        first, last = found[1], found[2] or found[1]
        if not 0 <= int(last) - int(first) < MAX_HOSTS:
            raise _malformed(text)
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers


def _malformed(text: str) -> UsageError:
    return UsageError(f"{text!r} is no list of nodes as Slurm writes them, such as node[0-3,07].")
