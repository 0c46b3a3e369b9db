"""Inside a Slurm job: which flags of ``elastic run`` follow from the allocation, and which commands cannot be meant."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping

import click

from elastic_core import hookimpl
from elastic_core.config import SHUTDOWN_VARIABLE
from elastic_core.errors import UsageError
from elastic_core.exit_codes import ExitCode
from elastic_slurm import allocation, shared_directory
from elastic_slurm.allocation import Allocation

FIRST_PORT, PORTS = 20_000, 10_000  # below the ports that Linux gives to outgoing connections (32768 and above)
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGUSR1,SIGUSR2,SIGURG"
SHUTDOWN_TIMEOUT = 90  # seconds for scripts that save on SIGTERM: with the grace, of the 120 of sbatch files' notice
LATEST = 86_400  # seconds that a job waits for the minimum of nodes where Slurm does not say when the allocation ends
PREEMPTION_GRACE = 20  # seconds: within the 30 that Slurm leaves by default between SIGTERM and SIGKILL (KillWait)
PLACE = ("rdzv_backend", "rdzv_endpoint", "node_rank", "master_addr", "master_port")

Default = tuple[str, str]  # the text of a flag, and the variables that it is from


@hookimpl
def elastic_scheduler_defaults(environ: Mapping[str, str], given: Mapping[str, object]) -> Mapping[str, Default] | None:
    """Return what follows from the allocation; the first node says so in one line on stderr."""
    if (here := allocation.read(environ)) is None:
        return None
    if environ.get(SHUTDOWN_VARIABLE):
        given = {**given, "shutdown_timeout": environ[SHUTDOWN_VARIABLE]}
    found = flag_defaults(here, given, functools.partial(shared_directory.find, environ))
    if not here.first:
        return found
    for text in filter(None, (warning(here, given), few_cpus(here, given, len(os.sched_getaffinity(0))))):
        click.echo(f"elastic: warning: {text}", err=True)
    if found:
        click.echo(f"elastic: {describe(found, here.job)}", err=True)
    return found


def flag_defaults(
    here: Allocation, given: Mapping[str, object], find_shared: Callable[[], Default | None]
) -> dict[str, Default]:
    """Return the defaults of the flags that ``given`` does not have.

    With a flag for the place where nodes meet, no place is returned; with a number of nodes, the user may start the
    agents in any way. ``find_shared`` returns a directory that all nodes see, and where it is from.

    Raises:
        UsageError: The process is not one of a step that has it once on each node.
    """
    alone = bool(given.get("standalone"))
    if "nnodes" not in given and not alone:
        _check(here)
    found: dict[str, Default] = {}
    if not alone:
        found.update(_size_and_name(here, given))
        several = str(given.get("nnodes", found["nnodes"][0])) != "1"
        if several and not given.keys() & {*PLACE}:
            _check_host(here)
            found.update(_place(here, find_shared, embedded_too=not _is_array_of_nodes(here, given)))
    if here.gpus:
        found["nproc_per_node"] = (str(here.gpus), here.gpus_from)
    found["signals_to_handle"] = (SIGNALS, "what Slurm sends")
    found["preemption_grace"] = (str(PREEMPTION_GRACE), "within Slurm's KillWait")
    found["shutdown_timeout"] = (str(SHUTDOWN_TIMEOUT), "of 120 s of notice")
    if not alone and (conf := _conf(here, given)):
        found["rdzv_conf"] = conf
    return {flag: value for flag, value in found.items() if flag not in given or flag == "rdzv_conf"}


def _conf(here: Allocation, given: Mapping[str, object]) -> Default | None:
    """Return where this node stands among others; and, where they come one by one, how long each waits for the minimum.

    The nodes of one step are there together: to wait for one of them that fails to start would cost all the others.
    """
    pairs = {f"order={here.order}": here.order_from} if here.order else {}
    if _is_array_of_nodes(here, given):
        pairs[f"join_timeout={here.seconds_left or LATEST}"] = "SLURM_JOB_END_TIME" if here.seconds_left else "a day"
    return (",".join(pairs), " and ".join(pairs.values())) if pairs else None


def describe(found: Mapping[str, Default], job: str) -> str:
    """Return the line that says what was taken from Slurm."""
    shown = ", ".join(f"--{flag}={text} ({origin})" for flag, (text, origin) in found.items())
    return f"Slurm job {job}: {shown}"


def warning(here: Allocation, given: Mapping[str, object]) -> str | None:
    """Return a sentence where each node of a step would be a job of its own because the user has said so."""
    alone = str(given.get("nnodes")) == "1" or bool(given.get("standalone"))
    if not alone or here.step is None or len(here.nodes) == 1:
        return None
    return f"Each of the {len(here.nodes)} nodes of this step runs a job of its own, because the command says so."


def few_cpus(here: Allocation, given: Mapping[str, object], cpus: int) -> str | None:
    """Return a sentence where the workers of this node have less than a CPU each; ``cpus`` is how many there are."""
    workers = given.get("nproc_per_node", here.gpus)
    if not isinstance(workers, int) or cpus >= workers:
        return None
    return (
        f"{workers} workers share {cpus} CPU{'s' if cpus > 1 else ''} on {here.node}: Slurm gives a task one CPU "
        "unless it is told otherwise. Write #SBATCH --exclusive, or --cpus-per-task=N, also for srun."
    )


def _size_and_name(here: Allocation, given: Mapping[str, object]) -> dict[str, Default]:
    if _is_array_of_nodes(here, given):
        most = here.array_tasks * len(here.nodes)
        return {"nnodes": (f"1:{most}" if most > 1 else "1", "SLURM_ARRAY_TASK_COUNT")}
    name = here.job if here.step is None else f"{here.job}.{here.step}"
    return {
        "nnodes": (str(len(here.nodes)), _list_of(here)),
        "rdzv_id": (name, "SLURM_JOB_ID" if here.step is None else "SLURM_JOB_ID and SLURM_STEP_ID"),
    }


def _list_of(here: Allocation) -> str:
    return "SLURM_JOB_NODELIST" if here.step is None else "SLURM_STEP_NODELIST"


def _is_array_of_nodes(here: Allocation, given: Mapping[str, object]) -> bool:
    """Return True if the tasks of this job array are nodes of one job: the user gives all of them the array's id."""
    return here.array is not None and given.get("rdzv_id") == here.array


def _place(here: Allocation, find_shared: Callable[[], Default | None], *, embedded_too: bool) -> dict[str, Default]:
    """Return where the nodes meet: a shared directory, or else a store on the first node of the list."""
    if (shared := find_shared()) is not None:
        directory, origin = shared
        return {"rdzv_backend": ("file", f"{origin} is shared"), "rdzv_endpoint": (directory, origin)}
    if not embedded_too:
        raise UsageError(
            f"The tasks of job array {here.array} have no place where they meet: no directory is known to be shared, "
            "and a store in the first task would end with it.",
            hint="Name a directory that all nodes see, ELASTIC_SHARED_DIRECTORY=/shared/me, or another store: "
            "--rdzv_backend and --rdzv_endpoint.",
        )
    endpoint = f"{here.nodes[0]}:{port_of(here.job, here.step)}"
    return {
        "rdzv_backend": ("c10d", "no directory is known to be shared"),
        "rdzv_endpoint": (endpoint, f"the first node of {_list_of(here)}"),
    }


def port_of(job: str, step: str | None) -> int:
    """Return the port of the store of a step: another one for each step of a job, and for jobs that follow each other.

    31 has no factor in common with ``PORTS``, so 10,000 jobs have 10,000 ports, and so have 31 steps of each two jobs
    that follow each other.
    """
    numbers = [int(text) if text and text.isdecimal() else 0 for text in (job, step)]
    return FIRST_PORT + (numbers[0] * 31 + numbers[1]) % PORTS


def _check(here: Allocation) -> None:
    """Refuse a process that is not one of a step with one process on each node of the allocation."""
    _check_host(here)
    count = here.job_nodes
    nodes = f"{count} node{'s' if count > 1 else ''}"
    again = "For a job of this node alone: --standalone, or --nnodes=1."
    if here.step is None and count > 1:
        raise UsageError(
            f"Slurm job {here.job} has {nodes}, and `elastic run` was started on {here.node} alone, without srun.",
            hint=f"Write srun in front of it: {_srun(here)}\n{again}",
        )
    if len(here.nodes) == 1 and count > 1:
        raise UsageError(
            f"Slurm job {here.job} has {nodes}, and this step of srun has {here.node} alone.",
            hint=f"Write: {_srun(here)}\n{again}",
        )
    if here.tasks_here > 1 and not here.first:
        raise SystemExit(ExitCode.USAGE)  # the first process says why
    if here.tasks_here > 1:
        text = f"One process a node starts all workers of its node. Write: {_srun(here)}"
        if here.gpus_per_task:
            text += (
                f"\nWith --gpus-per-task={here.gpus_per_task} that process would get the GPUs of one task only. In its "
                "place write in the sbatch script: #SBATCH --ntasks-per-node=1 "
                f"--gpus-per-node={here.gpus_per_task * here.tasks_here}"
            )
        raise UsageError(
            f"srun has started `elastic run` {here.tasks_here} times on {here.node}, once for each task.", hint=text
        )


def _check_host(here: Allocation) -> None:
    if here.node is None:
        raise UsageError(
            f"This host is not one of the {here.job_nodes} node{'s' if here.job_nodes > 1 else ''} of Slurm job "
            f"{here.job}: `elastic run` was typed on the host from which the job was submitted.",
            hint=f"Write srun in front of it: {_srun(here)}\nElse say where the nodes meet: --rdzv_endpoint.",
        )


def _srun(here: Allocation) -> str:
    """Return the command that starts one process on each node, whatever the job's own number of tasks."""
    if here.components > 1:
        return f"srun --het-group=0-{here.components - 1} elastic run …"
    count, cpus = here.job_nodes, here.cpus_per_task * here.tasks_here
    more = f" --cpus-per-task={cpus}" if cpus else ""
    return f"srun --nodes={count} --ntasks={count} --ntasks-per-node=1{more} elastic run …"
