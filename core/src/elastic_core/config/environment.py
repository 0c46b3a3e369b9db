"""The environment variables that Elastic reads or sets (``docs/reference/environment.md``).

Each flag of ``elastic run`` is also read from ``PET_<FLAG>`` (:func:`flag_variable`), as torchrun's are.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

from elastic_core.errors import without_passwords

FLAG_PREFIX = "PET_"
_MAY_HOLD_PASSWORD = (f"{FLAG_PREFIX}RDZV_ENDPOINT", f"{FLAG_PREFIX}RDZV_CONF")


class Use(enum.Enum):
    """How Elastic uses a variable."""

    READ = "read by the agent"
    SET = "set for each worker"
    STARTER = "set for the starter while it begins; workers do not see it"
    SERVICE = "set for a service that starts as a fresh interpreter; workers do not see it"
    DEFAULTED = "set for each worker, unless the agent has it already"


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable."""

    name: str
    use: Use
    meaning: str


def _variables(use: Use, **meanings: str) -> list[Variable]:
    return [Variable(name, use, meaning) for name, meaning in meanings.items()]


VARIABLES = (
    *_variables(
        Use.SET,
        RANK="The worker's rank among all workers of the round, counted from 0.",
        LOCAL_RANK="The worker's rank on its node, counted from 0; often the index of its GPU.",
        GROUP_RANK="The rank of the worker's node, counted from 0.",
        ROLE_RANK="The worker's rank among the workers of its role, counted from 0.",
        ROLE_NAME="The worker's role (--role).",
        WORLD_SIZE="The number of workers in the round.",
        LOCAL_WORLD_SIZE="The number of workers on the worker's node (--nproc_per_node).",
        GROUP_WORLD_SIZE="The number of nodes in the round.",
        ROLE_WORLD_SIZE="The number of workers with the worker's role.",
        MASTER_ADDR="The address of the node of rank 0, which hosts the workers' store.",
        MASTER_PORT="The port of the workers' store.",
        TORCHELASTIC_RESTART_COUNT="The number of restarts that the job has used so far.",
        TORCHELASTIC_MAX_RESTARTS="The number of restarts that the job may use (--max_restarts).",
        TORCHELASTIC_RUN_ID="The job id (--rdzv_id).",
        TORCHELASTIC_USE_AGENT_STORE="True: an agent hosts the workers' store of each round. False: rank 0 opens it.",
        TORCHELASTIC_ERROR_FILE=(
            "The file to which torch's @record writes the exception that ends the worker. If you set the variable for "
            "elastic run itself, elastic run writes the cause of the job's failure to that file."
        ),
        ELASTIC_RUN_UID="The random id of the run. A job id can have several runs, one after another.",
        ELASTIC_ROUND="The number of the round within the run. Numbers increase.",
        ELASTIC_CONTROL_FD="The file descriptor of the worker's packet socket to its agent. Scripts may ignore it.",
        ELASTIC_LOCAL_RANK="The worker's rank on its node, even if --virtual_local_rank sets LOCAL_RANK to 0.",
    ),
    *_variables(
        Use.DEFAULTED,
        TORCH_NCCL_ASYNC_ERROR_HANDLING="1: a failed collective terminates its process.",
        GLOO_SOCKET_IFNAME="The network interface with the node's address, for gloo. Set if the job has several nodes.",
        NCCL_SOCKET_IFNAME="The network interface for NCCL. Set if other hosts can reach only one interface.",
        OMP_NUM_THREADS="1 if the node has several workers. Otherwise each worker would use every core.",
    ),
    *_variables(
        Use.READ,
        ELASTIC_PLUGINS="Plugins to load in addition to those of --plugin, separated by commas. Workers load both.",
        ELASTIC_JOB_TOKEN="The job's secret, at least 32 characters. Nodes seal their data in the store with it.",
        PYTHONPATH="The module path of workers. While the starter begins, Elastic prepends a directory.",
        PYTHON_EXEC="The Python interpreter for workers. Default: the interpreter of the agent.",
        TORCH_ELASTIC_SHUTDOWN_TIMEOUT="Same as --shutdown_timeout. The flag takes precedence.",
        TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=(
            "The prefix of teed lines, with ${role_name}, ${rank} and ${local_rank}. Default: [rank${rank}]:"
        ),
        NO_COLOR="Any value but the empty one: no colours. Takes precedence over FORCE_COLOR.",
        FORCE_COLOR="Any value but the empty one: colours even if the output is not a terminal, or TERM is dumb.",
        TERM="dumb: no colours on a terminal.",
        LOGLEVEL="The minimum level of the events that the agent prints: DEBUG, INFO, WARNING or ERROR.",
        CUDA_VISIBLE_DEVICES="The GPUs that --nproc_per_node=gpu counts and --virtual_local_rank assigns.",
        HIP_VISIBLE_DEVICES="Same as CUDA_VISIBLE_DEVICES for AMD GPUs, where it takes precedence.",
        ROCR_VISIBLE_DEVICES="The AMD GPUs from which HIP_VISIBLE_DEVICES selects.",
        ZE_AFFINITY_MASK="Same as CUDA_VISIBLE_DEVICES for Intel GPUs and --nproc_per_node=xpu.",
        ZE_FLAT_DEVICE_HIERARCHY="COMPOSITE: an Intel card is one device, regardless of its tiles.",
        ELASTIC_HOST_NAME="The name of this host in messages and for elastic drain. Default: the host name.",
        ELASTIC_SCHEDULER_UID="The uid of the run, unless --rdzv_conf sets run_uid.",
        SLURM_JOB_ID="With SLURM_RESTART_COUNT, the uid of the run, unless --rdzv_conf sets run_uid.",
        SLURM_RESTART_COUNT="The number of times that Slurm has requeued the job.",
        SLURM_ARRAY_JOB_ID="The id of the job array. Tasks with the same --rdzv_id are nodes of one run.",
    ),
    *_variables(
        Use.STARTER,
        ELASTIC_STARTUP="The stage of Elastic's sitecustomize module: probe, starter or worker.",
        ELASTIC_STARTER="The function that the starter calls instead of a program.",
        ELASTIC_STARTER_ROOTS="The directories of the packages that it needs.",
        ELASTIC_STARTER_ROOM="Padding that Elastic overwrites with a worker's variables, so that /proc shows them.",
    ),
    *_variables(Use.SERVICE, ELASTIC_SERVICE="JSON with the service's entry point, arguments and file descriptors."),
)
"""All variables but those of the flags."""

_EXEC = "ELASTIC_EXEC"  # set below ``elastic exec``, where torchrun is Elastic's; workers do not inherit it
_SECRET = re.compile(r"ELASTIC_\w+_PASSWORD|ELASTIC_JOB_TOKEN")  # a backend's password, or the job's token


def inheritable(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that an agent's processes inherit: without secrets and ``ELASTIC_EXEC``."""

    def is_kept(name: str, value: str) -> bool:
        shows_password = name in _MAY_HOLD_PASSWORD and without_passwords(value) != value
        return name != _EXEC and not _SECRET.fullmatch(name) and not shows_password

    return {name: value for name, value in environ.items() if is_kept(name, value)}


def flag_variable(parameter: str) -> str:
    """Return the variable that a flag is also read from: ``PET_NPROC_PER_NODE`` for ``nproc_per_node``."""
    return FLAG_PREFIX + parameter.upper()


def threads(local_world_size: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return OMP_NUM_THREADS=1 for several workers, unless it is set: each would start a thread on every core."""
    return {"OMP_NUM_THREADS": "1"} if local_world_size > 1 and "OMP_NUM_THREADS" not in environ else {}
