"""The manifests that stand for an ElasticJob, and the pod of a node in them. Pure functions.

Each target's function returns its manifests in the order to apply them in. The pod is the same in all of them: its
launcher, its variables, its memory, and the time that it has to leave.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

from elastic_core.errors import UsageError
from elastic_core.exit_codes import ExitCode, signalled
from elastic_kubernetes.elastic_job import ElasticJob

Manifest = dict[str, Any]

REPLACEMENTS = 1000
"""The most failures of the pod of one index, for reasons of its own, before the index is given up.

A Job that has given up an index fails, although the other pods have trained to the end: the Job controller looks at
failed indexes before it looks at ``successPolicy``. The wait before a replacement grows to ten minutes, so that 1000 of
them take a week.
"""
JOBSET_RESTARTS = 3  # how often a JobSet begins anew after a failure that was not the program's
NODE = "node"  # the name that Kubeflow Trainer knows: of the replicated job, and of its container
JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
JOBSET_NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"
"""Of pods. A JobSet that Kubeflow Trainer makes has the TrainJob's name."""
TRAINER = "trainer.kubeflow.org/v1alpha1"
ANCESTOR = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}

PLACED = ("nnodes", "rdzv_backend", "rdzv_endpoint", "rdzv_id")  # the flags whose values an ElasticJob gives
PASSWORD = re.compile(r"://[^/@]*:[^/@]+@|[?&]password=.")  # in an endpoint that is a URL

WORTH_RUNNING_AGAIN = (ExitCode.TOO_FEW_NODES, ExitCode.REQUEUE)
JOB_IS_OVER = (ExitCode.JOB_FAILED, ExitCode.USAGE, *WORTH_RUNNING_AGAIN)
"""All pods end with these, or would: none is replaced."""

LAUNCHER = ("elastic", "run")
LAUNCH_MODULE = "torch.distributed.launch"  # the one that passes --local-rank to the script
MODULES = ("torchelastic.distributed.launch", "torch.distributed.run", LAUNCH_MODULE)  # after ``python -m``
JOB_UID_LABEL = "batch.kubernetes.io/controller-uid"  # the Job controller's; the same for all pods of a Job
SHARED_MEMORY, SHARED_MEMORY_PATH = "shared-memory", "/dev/shm"

GRACE_PERIOD_SECONDS = 120  # ``terminationGracePeriodSeconds``, where the ElasticJob has none
SHUTDOWN_SECONDS = 30  # the time between SIGTERM and SIGKILL for workers that did not stop together
JOIN_SECONDS = 86_400  # the wait of pods for the minimum of nodes: a cluster may have no machine yet
AGENT_SECONDS = 10  # the time that the agent needs besides, to announce that it leaves and to end its observers

_BINARY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
_SCALE = {
    "": Decimal(1),
    "m": Decimal("1e-3"),
    **{unit: Decimal(10) ** (3 * power) for power, unit in enumerate("kMGTPE", 1)},
    **{unit: Decimal(size) for unit, size in _BINARY.items()},
}
_FORM = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(?:([eE][+-]?[0-9]{1,2})|(m|[kMGTPE]|[KMGTPE]i))?")


def as_job(job: ElasticJob, options: PodOptions) -> list[Manifest]:
    """Return an Indexed Job, the headless Service that gives its pods names, and its disruption budget."""
    template = pod_template(job, options, find_launch(_container(job)), sizes=True, name_label=JOB_NAME_LABEL)
    template["spec"]["subdomain"] = job.name
    names = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {JOB_NAME_LABEL: job.name}}
    return [
        _manifest(job, "v1", "Service", names),
        _manifest(
            job, "batch/v1", "Job", {**_job_spec(job, template), **_given(ttlSecondsAfterFinished=job.ttl_seconds)}
        ),
        *_disruption_budget(job, JOB_NAME_LABEL),
    ]


def as_jobset(job: ElasticJob, options: PodOptions) -> list[Manifest]:
    """Return a JobSet of one Indexed Job, which begins anew where the failure was not the program's."""
    template = pod_template(job, options, find_launch(_container(job)), sizes=True, name_label=JOBSET_NAME_LABEL)
    replicated = {"name": NODE, "replicas": 1, "template": {"spec": _job_spec(job, template)}}
    jobset = _manifest(
        job,
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        {**_jobset_spec(replicated), **_given(ttlSecondsAfterFinished=job.ttl_seconds)},
    )
    return [jobset, *_disruption_budget(job, JOBSET_NAME_LABEL)]


def as_trainjob(job: ElasticJob, options: PodOptions) -> list[Manifest]:
    """Return a runtime of Kubeflow Trainer, and the TrainJob that uses it.

    Trainer sets ``PET_NNODES`` to the number of nodes, which the launcher takes for the greatest one.

    Raises:
        UsageError: The container has a command of its own, or the job would start with fewer nodes than its greatest
            number.
    """
    launch = find_launch(_container(job))
    if launch.wrapped:
        raise UsageError(
            f"ElasticJob {job.name}: the container's command {' '.join(launch.command)!r} cannot be a TrainJob's.",
            hint="Kubeflow Trainer sets the number of nodes for `elastic run` itself: leave `command` out and put "
            "the script into `args`, or render with --to jobset.",
        )
    sized = Launch((*LAUNCHER, f"--nnodes={job.min_nodes}:$(PET_NNODES)"), ())
    template = pod_template(job, options, sized, sizes=False, name_label=JOBSET_NAME_LABEL)
    container = template["spec"]["containers"][job.container]
    container["name"] = NODE
    del container["args"]
    replicated = {
        "name": NODE,
        "template": {"metadata": {"labels": ANCESTOR}, "spec": {**_job_policies(job, NODE), "template": template}},
    }
    policy = {"numNodes": job.nodes, "torch": {}}
    runtime_spec = {"mlPolicy": policy, "template": {"spec": _jobset_spec(replicated)}}
    runtime = _manifest(job, TRAINER, "TrainingRuntime", runtime_spec)
    runtime["metadata"]["labels"] = {"trainer.kubeflow.org/framework": "torch", **job.labels}
    trainer: Manifest = {"numNodes": job.nodes, "image": container["image"], "args": list(launch.args)}
    if not any(word.lstrip("-").replace("-", "_").startswith("nproc_per_node") for word in launch.args):
        trainer["numProcPerNode"] = 1  # torchelastic's default; Trainer's is one for each CPU
    spec: Manifest = {
        "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": job.name},
        "trainer": trainer,
        **_given(activeDeadlineSeconds=job.deadline_seconds),
    }
    return [runtime, _manifest(job, TRAINER, "TrainJob", spec), *_disruption_budget(job, JOBSET_NAME_LABEL)]


def _disruption_budget(job: ElasticJob, name_label: str) -> list[Manifest]:
    """Return what lets drains of machines and autoscalers take pods one by one, down to the job's minimum.

    None where no pod can be spared: such a budget would block every drain of their machines.
    """
    if job.min_nodes >= job.nodes:
        return []
    spec = {
        "minAvailable": job.min_nodes,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": {name_label: job.name}},
    }
    return [_manifest(job, "policy/v1", "PodDisruptionBudget", spec)]


TARGETS: Mapping[str, Callable[[ElasticJob, PodOptions], list[Manifest]]] = {
    "job": as_job,
    "jobset": as_jobset,
    "trainjob": as_trainjob,
}
"""The values of ``elastic render --to``."""


def warnings_for(job: ElasticJob, options: PodOptions, target: str) -> list[str]:
    """Return what people should know about the rendering, one sentence or two each."""
    container, launch = _container(job), find_launch(_container(job))
    image, said = options.image or str(container["image"]), list(job.warnings)
    if image.startswith("torchelastic/"):
        said.append(
            f"the image {image!r} has torchelastic's launcher, and not Elastic. Build one that has elastic-core and "
            f"the distribution of the {options.backend} backend, and name it with --image."
        )
    own = {variable["name"] for variable in container.get("env") or ()}
    if "PET_RDZV_ENDPOINT" not in own and PASSWORD.search(job.endpoint):
        said.append(
            "the manifest contains the store's password. Put the endpoint into a Secret, name it in the env of the "
            "ElasticJob's container, {name: PET_RDZV_ENDPOINT, valueFrom: {secretKeyRef: {name: rendezvous, key: "
            "endpoint}}}, and write the endpoint of the ElasticJob without the password."
        )
    if launch.wrapped:
        said.append(
            f"the container's command {' '.join(launch.command)!r} is kept. The variables PET_… tell `elastic run` or "
            "torchrun within it where to meet; call it with `exec`, so that it gets SIGTERM. The pod drains its node "
            "before it ends, as the command may pass no signal on."
        )
    if twice := sorted({flag for word in launch.args if (flag := _flag(word)) in PLACED}):
        said.append(
            f"the args have {', '.join('--' + flag for flag in twice)}, which win over the ElasticJob's own fields and "
            "the variables PET_… of the manifest. torchelastic's controller wrote such flags: leave them out."
        )
    pod = job.template["spec"]
    if others := [str(one["name"]) for at, one in enumerate(pod["containers"]) if at != job.container]:
        said.append(
            f"the container {', '.join(others)} runs beside the one that trains: a pod ends when all its containers "
            "have. Make it an init container with restartPolicy: Always, which ends with the others."
        )
    if pod.get("hostNetwork") and pod.get("dnsPolicy") != "ClusterFirstWithHostNet":
        said.append(
            "hostNetwork: true without dnsPolicy: ClusterFirstWithHostNet: the pod finds no Service by its name, such "
            f"as that of the store, {job.endpoint}."
        )
    if target == "trainjob" and job.ttl_seconds is not None:
        said.append("spec.ttlSecondsAfterFinished is left out: a TrainJob has no such field.")
    if target == "trainjob" and job.nodes < job.max_nodes:
        said.append(
            f"spec.maxReplicas {job.max_nodes} is left out: a TrainJob has one number of nodes, {job.nodes}, which is "
            "also the greatest."
        )
    return said


def _flag(word: str) -> str:
    """Return the name of a flag as ``elastic run`` has it; '' for another word."""
    return word.lstrip("-").partition("=")[0].replace("-", "_") if word.startswith("--") else ""


def _container(job: ElasticJob) -> Mapping[str, Any]:
    found: Mapping[str, Any] = job.template["spec"]["containers"][job.container]
    return found


def _manifest(job: ElasticJob, api_version: str, kind: str, spec: Manifest) -> Manifest:
    own = _given(namespace=job.namespace, labels=dict(job.labels) or None, annotations=dict(job.annotations) or None)
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": job.name, **own}, "spec": spec}


def _given(**fields: object) -> Manifest:
    return {name: value for name, value in fields.items() if value is not None}


def _job_spec(job: ElasticJob, template: Manifest) -> Manifest:
    name = template["spec"]["containers"][job.container]["name"]
    return {
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        **_job_policies(job, name),
        **_given(activeDeadlineSeconds=job.deadline_seconds),
        "template": template,
    }


def _job_policies(job: ElasticJob, container: str) -> Manifest:
    """Return what follows the end of a pod, by the exit codes of ``elastic run`` (docs/reference/exit_codes.md)."""
    return {
        "backoffLimitPerIndex": REPLACEMENTS,
        # The job has trained to its end when as many nodes say so as it needs. Pods that still wait for a machine are
        # deleted then; without this, the Job would wait for them.
        "successPolicy": {"rules": [{"succeededCount": job.min_nodes}]},
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                # The machine is taken away, or the pod is deleted: another pod comes, and none is counted.
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "Ignore", "onExitCodes": _codes(container, signalled(15))},
                {"action": "FailJob", "onExitCodes": _codes(container, *JOB_IS_OVER)},
            ]
        },
        **_given(backoffLimit=job.backoff_limit),
    }


def _codes(container: str, *codes: int) -> Manifest:
    return {"containerName": container, "operator": "In", "values": sorted(int(code) for code in codes)}


def _jobset_spec(replicated: Manifest) -> Manifest:
    """Return the spec of a JobSet of one Job. After a failure it begins anew, unless that was the program's."""
    again = "|".join(str(int(code)) for code in WORTH_RUNNING_AGAIN)
    policy = {
        "maxRestarts": JOBSET_RESTARTS,
        "rules": [
            {
                "name": "worthRunningAgain",
                "action": "RestartJobSet",
                "onJobFailureReasons": ["PodFailurePolicy"],
                "onJobFailureMessagePatterns": [f"failed with exit code ({again}) "],
            },
            {
                "name": "failedForGood",
                "action": "FailJobSet",
                "onJobFailureReasons": ["PodFailurePolicy", "DeadlineExceeded"],
            },
        ],
    }
    network = {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    return {"failurePolicy": policy, "network": network, "replicatedJobs": [replicated]}


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
    """Return the ``--preemption_grace`` that fits into a pod's grace period; raise UsageError if that is too short."""
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
    theirs = container.get("env") or []
    given = {variable["name"] for variable in theirs}
    container["env"] = [*(variable for variable in ours if variable["name"] not in given), *theirs]
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


def parse_bytes(text: str) -> int:
    """Return the bytes of a quantity, rounded up; raise ValueError if the text is not a quantity."""
    if (found := _FORM.fullmatch(text)) is None:
        raise ValueError(text)
    number, exponent, unit = found.groups()
    return math.ceil(Decimal(number + (exponent or "")) * _SCALE[unit or ""])


def format_bytes(size: int) -> str:
    """Return so many bytes with the greatest binary unit that divides them."""
    unit = max(
        (name for name, scale in _BINARY.items() if size and size % scale == 0), key=_BINARY.__getitem__, default=""
    )
    return f"{size // _BINARY.get(unit, 1)}{unit}"
