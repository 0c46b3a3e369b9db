"""The manifests that stand for an ElasticJob. Pure functions; each returns them in the order to apply them in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from elastic_core.errors import UsageError
from elastic_core.exit_codes import ExitCode, signalled
from elastic_kubernetes.elastic_job import ElasticJob
from elastic_kubernetes.pod_template import LAUNCHER, Launch, PodOptions, find_launch, pod_template

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


def as_job(job: ElasticJob, options: PodOptions) -> list[Manifest]:
    """Return an Indexed Job, the headless Service that gives its pods names, and its disruption budget."""
    template = pod_template(job, options, find_launch(_container(job)), sizes=True, name_label=JOB_NAME_LABEL)
    template["spec"]["subdomain"] = job.name
    names = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {JOB_NAME_LABEL: job.name}}
    return [
        _manifest(job, "v1", "Service", names),
        _manifest(job, "batch/v1", "Job", {**_job_spec(job, template), **_expiry(job)}),
        *_disruption_budget(job, JOB_NAME_LABEL),
    ]


def as_jobset(job: ElasticJob, options: PodOptions) -> list[Manifest]:
    """Return a JobSet of one Indexed Job, which begins anew where the failure was not the program's."""
    template = pod_template(job, options, find_launch(_container(job)), sizes=True, name_label=JOBSET_NAME_LABEL)
    replicated = {"name": NODE, "replicas": 1, "template": {"spec": _job_spec(job, template)}}
    jobset = _manifest(job, "jobset.x-k8s.io/v1alpha2", "JobSet", {**_jobset_spec(replicated), **_expiry(job)})
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
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def _expiry(job: ElasticJob) -> Manifest:
    return _given(ttlSecondsAfterFinished=job.ttl_seconds)


def _job_spec(job: ElasticJob, template: Manifest) -> Manifest:
    """Return the spec of an Indexed Job whose pods are nodes."""
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
