"""The pod of one node: its launcher, its variables, its memory, and the time that it has to leave. Pure functions."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from elastic_core.errors import UsageError
from elastic_kubernetes.elastic_job import ElasticJob
from elastic_kubernetes.quantities import format_bytes, parse_bytes

LAUNCHER = ("elastic", "run")
LAUNCH_MODULE = "torch.distributed.launch"  # the one that passes --local-rank to the script
MODULES = ("torchelastic.distributed.launch", "torch.distributed.run", LAUNCH_MODULE)  # after ``python -m``
JOB_UID_LABEL = "batch.kubernetes.io/controller-uid"  # the Job controller's; the same for all pods of a Job
SHARED_MEMORY, SHARED_MEMORY_PATH = "shared-memory", "/dev/shm"

GRACE_PERIOD_SECONDS = 120  # ``terminationGracePeriodSeconds``, where the ElasticJob has none
SHUTDOWN_SECONDS = 30  # the time between SIGTERM and SIGKILL for workers that did not stop together
JOIN_SECONDS = 86_400
"""The wait of pods for the minimum of nodes: a cluster may have no machine for the next one yet."""
AGENT_SECONDS = 10  # the time that the agent needs besides, to announce that it leaves and to end its observers


@dataclass(frozen=True, slots=True)
class PodOptions:
    """The options of the command line for the pod. Sizes are in bytes."""

    backend: str
    image: str | None = None
    shared_memory: int = 1 << 30  # the size of /dev/shm
    snapshots: int = 0  # the memory of the snapshots that TrainState keeps, on one node


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch of a container: by ``elastic run``, or by a command of its own that calls it."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    wrapped: bool = False  # whether the command is one that is not known, such as a shell


def find_launch(container: Mapping[str, Any]) -> Launch:
    """Return the launch for a container's command and arguments; the flags of a known launcher are kept."""
    command: Sequence[str] = container.get("command") or ()
    args: Sequence[str] = container.get("args") or ()
    if not command:  # the image's entrypoint was a launcher
        return Launch(LAUNCHER, tuple(args))
    words = [PurePosixPath(command[0]).name, *command[1:]]
    if words[:2] == list(LAUNCHER):
        return Launch(LAUNCHER, (*words[2:], *args))
    if words[0] == "torchrun":
        return Launch(LAUNCHER, (*words[1:], *args))
    if words[0].startswith("python"):
        module = next((at for at, word in enumerate(words) if at and word not in ("-u", "-B", "-O", "-s", "-E")), 0)
        if words[module : module + 1] == ["-m"] and words[module + 1 : module + 2] and words[module + 1] in MODULES:
            uses_env = words[module + 1] != LAUNCH_MODULE or "--use_env" in (*words, *args)
            return Launch(LAUNCHER, (*(() if uses_env else ("--pass_local_rank",)), *words[module + 2 :], *args))
    return Launch(tuple(command), tuple(args), wrapped=True)


def stop_seconds(grace_period: int, job: ElasticJob) -> int:
    """Return the ``--preemption_grace`` that fits into a pod's ``terminationGracePeriodSeconds``.

    Raises:
        UsageError: It is too short for a planned stop.
    """
    if (left := grace_period - SHUTDOWN_SECONDS - AGENT_SECONDS) < 1:
        needed = SHUTDOWN_SECONDS + AGENT_SECONDS + 1
        raise UsageError(
            f"ElasticJob {job.name}: terminationGracePeriodSeconds {grace_period} is too short for a planned stop.",
            hint=f"Workers get {SHUTDOWN_SECONDS} s to end after SIGTERM, and the agent {AGENT_SECONDS} s. Give at "
            f"least {needed}, and as much more as the longest step and a checkpoint take.",
        )
    return left


def pod_template(
    job: ElasticJob, options: PodOptions, launch: Launch, *, sizes: bool, name_label: str
) -> dict[str, Any]:
    """Return the ``template`` of the pod of one node.

    ``sizes`` says whether ``PET_NNODES`` is set: Kubeflow Trainer sets its own. ``name_label`` is the label of the pod
    in which its controller writes the job's name, so that a copy of the manifest under another name is another job.
    """
    template: dict[str, Any] = copy.deepcopy(dict(job.template))
    spec = template["spec"]
    container = spec["containers"][job.container]
    if spec.get("terminationGracePeriodSeconds") is None:
        spec["terminationGracePeriodSeconds"] = GRACE_PERIOD_SECONDS
    grace = stop_seconds(spec["terminationGracePeriodSeconds"], job)
    container["command"] = list(launch.command)
    container["args"] = list(launch.args)
    if options.image is not None:
        container["image"] = options.image
    if launch.wrapped and not (container.get("lifecycle") or {}).get("preStop"):
        # The container's first process may be a shell, which passes no signal on. The node is drained instead.
        drain = {"exec": {"command": ["sh", "-c", 'exec elastic drain "$ELASTIC_HOST_NAME"']}}
        container["lifecycle"] = {**(container.get("lifecycle") or {}), "preStop": drain}
    ours = _variables(job, options, grace, sizes=sizes, name_label=name_label)
    container["env"] = _merged(ours, container.get("env") or [])
    # `kubectl describe` then shows why the container failed.
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    extra = options.snapshots + _share_memory(spec, container, options.shared_memory)
    if resources := container.get("resources"):
        container["resources"] = _with_memory(resources, extra, job)
    spec["containers"][job.container] = _in_order(container)
    spec["restartPolicy"] = "Never"  # the Job replaces a pod that failed, by what its exit code says
    return template


def _in_order(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container with the fields that people look for first."""
    first = ("name", "image", "imagePullPolicy", "command", "args", "env")
    return {**{name: container[name] for name in first if name in container}, **container}


def _variables(
    job: ElasticJob, options: PodOptions, grace: int, *, sizes: bool, name_label: str
) -> list[dict[str, Any]]:
    """Return the variables of ``elastic run``, those first that others refer to."""
    plan = {"PET_NNODES": f"{job.min_nodes}:{job.max_nodes}"} if sizes else {}
    values = {
        "ELASTIC_HOST_NAME": "$(POD_NAME)",
        "ELASTIC_SCHEDULER_UID": "$(JOB_UID)",
        "PET_LOCAL_ADDR": "$(POD_IP)",
        "PET_RDZV_BACKEND": options.backend,
        "PET_RDZV_ENDPOINT": job.endpoint,
        "PET_RDZV_ID": "$(POD_NAMESPACE).$(TRAIN_JOB)",
        "PET_RDZV_CONF": f"join_timeout={JOIN_SECONDS},order=$(POD_NAME)",
        **plan,
        "PET_PREEMPTION_GRACE": str(grace),
        "PET_SHUTDOWN_TIMEOUT": str(SHUTDOWN_SECONDS),
        "PYTHONUNBUFFERED": "1",
    }
    return [
        _from_field("POD_NAME", "metadata.name"),
        _from_field("POD_NAMESPACE", "metadata.namespace"),
        _from_field("POD_IP", "status.podIP"),
        _from_field("TRAIN_JOB", f"metadata.labels['{name_label}']"),
        _from_field("JOB_UID", f"metadata.labels['{JOB_UID_LABEL}']"),
        *({"name": name, "value": value} for name, value in values.items()),
    ]


def _from_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _merged(ours: Iterable[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return both lists of variables; where a name is in both, the user's counts."""
    given = {variable["name"] for variable in theirs}
    return [*(variable for variable in ours if variable["name"] not in given), *theirs]


def _share_memory(spec: dict[str, Any], container: dict[str, Any], size: int) -> int:
    """Give the container a /dev/shm of that size; return the memory that it takes, 0 where the user's own is there."""
    mounts = container["volumeMounts"] = container.get("volumeMounts") or []
    if any(mount["mountPath"].rstrip("/") == SHARED_MEMORY_PATH for mount in mounts):
        return 0
    taken = {volume["name"] for volume in spec.get("volumes") or []}
    name = next(name for name in (SHARED_MEMORY, "elastic-shared-memory", "elastic-dev-shm") if name not in taken)
    mounts.append({"name": name, "mountPath": SHARED_MEMORY_PATH})
    volume = {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": format_bytes(size)}}
    spec["volumes"] = [*(spec.get("volumes") or []), volume]
    return size


def _with_memory(resources: Mapping[str, Any], extra: int, job: ElasticJob) -> dict[str, Any]:
    grown = copy.deepcopy(dict(resources))
    for name in ("limits", "requests"):
        amounts = grown.get(name)
        if amounts and (given := amounts.get("memory")) is not None:
            try:
                amounts["memory"] = format_bytes(parse_bytes(str(given)) + extra)
            except ValueError:
                raise UsageError(
                    f"ElasticJob {job.name}: resources.{name}.memory {given!r} is not an amount of memory.",
                    hint="Write it as 512Mi or 16Gi.",
                ) from None
    return grown
