"""Manifests of Kubernetes run as processes of this machine: what the controllers and the kubelet would do, in small.

Each pod has namespaces of its own: a network with an address that the others reach, a host name, mounts with its
memory volumes, and processes, of which the container's command is the first one, so that killing it kills the pod. The
names of services are those in a hosts file. What the image would have is on this machine: paths of the image are
replaced by paths here. Needs root.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hosts import Host
from rig import PATIENCE, Agent, Rig, descendants

INDEX = "batch.kubernetes.io/job-completion-index"
TRAINER_PORT = 29500
Manifest = dict[str, Any]


def documents(path: Path) -> list[Manifest]:
    """Return the manifests in a file."""
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def of_kind(kind: str, manifests: Iterable[Manifest]) -> Manifest:
    """Return the one manifest of a kind."""
    (found,) = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found


@dataclass(frozen=True, slots=True)
class Job:
    """An Indexed Job as it is in the cluster."""

    name: str
    spec: Manifest
    labels: Mapping[str, str] = field(default_factory=dict)  # of its pods, besides the Job controller's
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def indexes(self) -> int:
        """The number of pods that run at once."""
        return int(self.spec["parallelism"])

    @property
    def subdomain(self) -> str | None:
        """The headless service of its pods."""
        found: str | None = self.spec["template"]["spec"].get("subdomain")
        return found


def job_of(manifests: Iterable[Manifest]) -> Job:
    """Return the Job in a list of manifests."""
    job = of_kind("Job", manifests)
    return Job(job["metadata"]["name"], copy.deepcopy(job["spec"]))


def job_of_jobset(jobset: Manifest, labels: Mapping[str, str] | None = None) -> Job:
    """Return the one Job that the JobSet controller makes."""
    name = jobset["metadata"]["name"]
    (replicated,) = jobset["spec"]["replicatedJobs"]
    spec = copy.deepcopy(replicated["template"]["spec"])
    spec["template"]["spec"]["subdomain"] = jobset["spec"].get("network", {}).get("subdomain", name)
    own = {
        "jobset.sigs.k8s.io/jobset-name": name,
        "jobset.sigs.k8s.io/replicatedjob-name": replicated["name"],
        "jobset.sigs.k8s.io/restart-attempt": "0",
        "jobset.sigs.k8s.io/job-index": "0",
    }
    return Job(f"{name}-{replicated['name']}-0", spec, {**(labels or {}), **own})


def jobset_of_trainjob(runtime: Manifest, train_job: Manifest) -> Manifest:
    """Return the JobSet that Kubeflow Trainer makes of a TrainJob and its runtime, with what its torch plugin sets."""
    name, trainer = train_job["metadata"]["name"], train_job["spec"]["trainer"]
    spec = copy.deepcopy(runtime["spec"]["template"]["spec"])
    (replicated,) = spec["replicatedJobs"]
    label = replicated["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"]
    assert (replicated["name"], label) == ("node", "trainer")
    job = replicated["template"]["spec"]
    nodes = trainer.get("numNodes", runtime["spec"]["mlPolicy"].get("numNodes", 1))
    job.update(parallelism=nodes, completions=nodes, completionMode="Indexed")
    (container,) = [one for one in job["template"]["spec"]["containers"] if one["name"] == "node"]
    container.update({key: trainer[key] for key in ("image", "command", "args") if key in trainer})
    if "resourcesPerNode" in trainer:
        container["resources"] = trainer["resourcesPerNode"]
    assert "torch" in runtime["spec"]["mlPolicy"]
    rank = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
    injected = [
        *trainer.get("env", []),
        {"name": "PET_NNODES", "value": str(nodes)},
        {"name": "PET_NPROC_PER_NODE", "value": str(trainer.get("numProcPerNode", "auto"))},
        {"name": "PET_NODE_RANK", "valueFrom": rank},
        {"name": "PET_MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
        {"name": "PET_MASTER_PORT", "value": str(TRAINER_PORT)},
    ]
    replaced = {variable["name"] for variable in injected}
    container["env"] = [*(one for one in container["env"] if one["name"] not in replaced), *injected]
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}, "spec": spec}


def expanded(text: str, environ: Mapping[str, str]) -> str:
    """Return a text of a container with its references ``$(NAME)`` resolved; ``$$`` is a dollar, as in Kubernetes."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else environ.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([\w.-]+)\)", value, text)


@dataclass
class Pod:
    """One pod, whose process is an :class:`Agent` of the rig."""

    name: str
    agent: Agent
    grace_period: float

    @property
    def first_process(self) -> int:
        """The container's first process, which is the pod's process 1."""
        return descendants(self.agent.pid)[0]

    def terminate(self) -> None:
        """Send SIGTERM to the container, as the kubelet does when the pod is deleted; it kills what is left later."""
        os.kill(self.first_process, signal.SIGTERM)

    def execute(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, with its variables, as ``kubectl exec`` and hooks of the kubelet do."""
        pid = self.first_process
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        environ = dict(pair.split("=", 1) for pair in pairs if pair)
        enter = ["nsenter", f"--target={pid}", "--net", "--uts", "--pid", "--mount", "--", *words]
        return subprocess.run(enter, env=environ, capture_output=True, text=True, timeout=PATIENCE)

    def kill(self) -> None:
        """Kill the container with all its processes, as when its machine is lost."""
        os.kill(self.first_process, signal.SIGKILL)
        self.agent.process.wait(PATIENCE)


@dataclass
class PodCluster:
    """Runs pods on hosts; a pod's host is its machine and its address.

    Args:
        rig: Starts processes, and ends what is left.
        hosts: Free machines.
        image: Texts of containers that name what the image would have, and what is in their place here.
    """

    rig: Rig
    hosts: list[Host]
    image: Mapping[str, Sequence[str]]
    namespace: str = "default"
    pods: list[Pod] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # the addresses of services and pods, by name

    def start(self, job: Job, index: int) -> Pod:
        """Start the pod of one index, as the Job controller makes it."""
        hostname = f"{job.name}-{index}"
        name = f"{hostname}-{uuid.uuid4().hex[:5]}"
        labels = {
            "batch.kubernetes.io/job-name": job.name,
            "batch.kubernetes.io/controller-uid": job.uid,
            INDEX: str(index),
            **job.labels,
        }
        names = [hostname, *([f"{hostname}.{job.subdomain}"] if job.subdomain else [])]
        return self._run(name, hostname, names, labels, {INDEX: str(index)}, job.spec["template"]["spec"])

    def serve(self, manifests: Sequence[Manifest]) -> Pod:
        """Start the one pod of a StatefulSet, under the name of its service."""
        service, workload = of_kind("Service", manifests), of_kind("StatefulSet", manifests)
        selector, labels = service["spec"]["selector"], workload["spec"]["template"]["metadata"]["labels"]
        assert selector.items() <= labels.items(), "the service finds the pod"
        name, spec = f"{workload['metadata']['name']}-0", copy.deepcopy(workload["spec"]["template"]["spec"])
        claims = [claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])]
        spec["volumes"] = [*spec.get("volumes", []), *({"name": claim, "emptyDir": {}} for claim in claims)]
        return self._run(name, name, [service["metadata"]["name"]], labels, {}, spec)

    def _run(
        self,
        name: str,
        hostname: str,
        names: Sequence[str],
        labels: Mapping[str, str],
        annotations: Mapping[str, str],
        spec: Manifest,
    ) -> Pod:
        host = self.hosts.pop(0)
        self.names.update(dict.fromkeys(names, host.ipv4))
        self._write_hosts()
        (container,) = spec["containers"]
        fields = {
            "metadata.name": name,
            "metadata.namespace": self.namespace,
            "status.podIP": host.ipv4,
            **{f"metadata.labels['{key}']": value for key, value in labels.items()},
            **{f"metadata.annotations['{key}']": value for key, value in annotations.items()},
        }
        environ: dict[str, str] = {}
        for variable in container.get("env", []):
            source = variable.get("valueFrom")
            if source is not None and source.get("secretKeyRef", {}).get("optional"):
                continue  # the namespace has no such Secret
            value = expanded(variable["value"], environ) if source is None else fields[source["fieldRef"]["fieldPath"]]
            environ[variable["name"]] = value
        words = [expanded(word, environ) for word in (*container["command"], *container.get("args", []))]
        command = [here for word in words for here in self._on_this_machine(word)]
        inside = [f"hostname {shlex.quote(hostname)}", f"mount --bind {shlex.quote(str(self._hosts))} /etc/hosts"]
        inside.append(f"mount --bind {shlex.quote(str(self._resolver))} /etc/resolv.conf")
        inside += [*self._mounts(name, container, spec), 'exec "$@"']
        namespaces = ["unshare", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
        argv = [*namespaces, "sh", "-ec", "; ".join(inside), name, *command]
        agent = self.rig.start(host.command(*argv), env=environ)
        pod = Pod(name, agent, float(spec.get("terminationGracePeriodSeconds", 30)))
        self.pods.append(pod)
        return pod

    def _on_this_machine(self, word: str) -> Sequence[str]:
        if word in self.image:
            return self.image[word]
        prefix = next((prefix for prefix in self.image if prefix.endswith("/") and word.startswith(prefix)), None)
        return [word] if prefix is None else [f"{self.image[prefix][0]}/{word.removeprefix(prefix)}"]

    def _mounts(self, name: str, container: Manifest, spec: Manifest) -> list[str]:
        """Return the commands that mount the pod's volumes: those in memory as such, others from a folder."""
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        said = []
        for mount in container.get("volumeMounts", []):
            empty, path = volumes[mount["name"]]["emptyDir"], shlex.quote(mount["mountPath"])
            if empty.get("medium") == "Memory":
                size = int(empty["sizeLimit"].removesuffix("Gi")) << 30
                said.append(f"mount -t tmpfs -o size={size} {mount['name']} {path}")
            elif Path(mount["mountPath"]).is_dir():
                folder = self.rig.folder / name / mount["name"]
                folder.mkdir(parents=True)
                folder.chmod(0o700)
                said.append(f"mount --bind {shlex.quote(str(folder))} {path}")
        return said

    @property
    def _hosts(self) -> Path:
        return self.rig.folder / "hosts"

    @property
    def _resolver(self) -> Path:
        return self.rig.folder / "resolv.conf"

    def _write_hosts(self) -> None:
        self._resolver.write_text("nameserver 127.0.0.1\n", encoding="utf-8")  # refuses at once
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in self.names.items())]
        self._hosts.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def delete(self) -> None:
        """End all pods at once."""
        for pod in self.pods:
            if pod.agent.process.poll() is None:
                for pid in [*descendants(pod.agent.pid)[:1], pod.agent.pid]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                pod.agent.process.wait(PATIENCE)


PYTHON = {"elastic": [sys.executable, "-m", "elastic_core"]}
