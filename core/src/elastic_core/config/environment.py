"""Every environment variable that Elastic reads or sets, with its meaning; ``docs/environment.md`` shows them.

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
    FORK_SERVER = "set for the fork server while it starts; workers do not see it"
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
        RANK="The worker's rank among all workers of the round, from 0.",
        LOCAL_RANK="The worker's rank on its node, from 0; often the index of its GPU.",
        GROUP_RANK="The rank of the worker's node, from 0.",
        ROLE_RANK="The worker's rank among the workers of its role, from 0.",
        ROLE_NAME="The worker's role (--role).",
        WORLD_SIZE="The number of workers in the round.",
        LOCAL_WORLD_SIZE="The number of workers on the worker's node (--nproc_per_node).",
        GROUP_WORLD_SIZE="The number of nodes in the round.",
        ROLE_WORLD_SIZE="The number of workers of the worker's role.",
        MASTER_ADDR="The address of the node of rank 0, where the workers' store is.",
        MASTER_PORT="The port of the workers' store.",
        TORCHELASTIC_RESTART_COUNT="Restarts that the job has spent so far.",
        TORCHELASTIC_MAX_RESTARTS="Restarts that the job may spend (--max_restarts).",
        TORCHELASTIC_RUN_ID="The job id (--rdzv_id).",
        TORCHELASTIC_USE_AGENT_STORE="True: the agents serve the workers' store, one a round. False: rank 0 opens it.",
        TORCHELASTIC_ERROR_FILE=(
            "The file to which torch's @record writes the exception that ends the worker. Where it is set for elastic "
            "run itself: the file to which elastic run writes why the job has failed."
        ),
        ELASTIC_RUN_UID="The run's own random id; one job id may see many runs.",
        ELASTIC_ROUND="The round's number within the run; a later round has a greater one.",
        ELASTIC_CONTROL_FD="The descriptor of the worker's channel to its agent, a packet socket; it may be ignored.",
        ELASTIC_LOCAL_RANK="The worker's rank on its node, also where LOCAL_RANK is 0 (--virtual_local_rank).",
    ),
    *_variables(
        Use.DEFAULTED,
        TORCH_NCCL_ASYNC_ERROR_HANDLING="1: a collective that fails ends its process.",
        GLOO_SOCKET_IFNAME="The interface that has the node's address, for gloo; where a job has several nodes.",
        NCCL_SOCKET_IFNAME="The same for NCCL, where the host has one interface that other hosts may reach.",
        OMP_NUM_THREADS="1, where a node has several workers: else each would use every core.",
    ),
    *_variables(
        Use.READ,
        ELASTIC_PLUGINS="Names of plugins to load besides those of --plugin, separated by commas. Workers get both.",
        ELASTIC_JOB_TOKEN="The secret of all nodes of a job, 32 characters or more; it seals their data in the store.",
        PYTHONPATH="The module path of workers. While the fork server starts, a directory of Elastic precedes it.",
        PYTHON_EXEC="The interpreter for workers; the agent's own where it is not set.",
        TORCH_ELASTIC_SHUTDOWN_TIMEOUT="As --shutdown_timeout, which takes precedence.",
        TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=(
            "The prefix of a teed line, with ${role_name}, ${rank} and ${local_rank}; [rank${rank}]: by default."
        ),
        NO_COLOR="Set to anything: no colours. It precedes FORCE_COLOR.",
        FORCE_COLOR="Set to anything: colours also where the output is no terminal, or TERM is dumb.",
        TERM="dumb: no colours on a terminal.",
        LOGLEVEL="The least level of the events that the agent prints: DEBUG, INFO, WARNING or ERROR.",
        TORCHELASTIC_ENABLE_FILE_TIMER="1: processes whose torch.distributed.elastic.timer expires are ended.",
        TORCHELASTIC_TIMER_FILE="The named pipe for those timers, also for workers; the agent makes one by default.",
        TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=(
            "Seconds that a worker may wait in the kernel (state D) before its round ends; 0, no limit, by default."
        ),
        CUDA_VISIBLE_DEVICES="GPUs that --nproc_per_node=gpu counts and --virtual_local_rank hands out.",
        HIP_VISIBLE_DEVICES="As CUDA_VISIBLE_DEVICES, for AMD's GPUs; takes precedence there.",
        ROCR_VISIBLE_DEVICES="AMD's GPUs that are left for HIP_VISIBLE_DEVICES to choose from.",
        ZE_AFFINITY_MASK="As CUDA_VISIBLE_DEVICES, for Intel's GPUs and --nproc_per_node=xpu.",
        ZE_FLAT_DEVICE_HIERARCHY="COMPOSITE: an Intel card is one device, whatever its tiles.",
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE=(
            "0: torch's own rendezvous handlers share their store with the workers, and a node that joins ends the job."
        ),
        ELASTIC_HOST_NAME="The name of this host in messages and for elastic drain; its own where it is not set.",
        ELASTIC_SCHEDULER_UID="The run's uid, where --rdzv_conf sets no run_uid.",
        SLURM_JOB_ID="With SLURM_RESTART_COUNT the run's uid, where --rdzv_conf sets no run_uid.",
        SLURM_RESTART_COUNT="How often Slurm has requeued the job.",
        SLURM_ARRAY_JOB_ID="A job array's id; tasks with the same --rdzv_id are nodes of one run.",
    ),
    *_variables(
        Use.FORK_SERVER,
        ELASTIC_FORK_SERVER="The stage of Elastic's sitecustomize: probe, hooked or worker.",
        ELASTIC_FORK_SERVER_ROOM="Spaces that are replaced by a worker's variables, for /proc.",
    ),
    *_variables(Use.SERVICE, ELASTIC_SERVICE="The service's call: JSON with the entry, the arguments and descriptors."),
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
