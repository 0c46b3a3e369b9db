"""The manifests of Kubernetes against a real control plane: etcd, the API server and controllers, but no kubelet.

A program to be run by hand, since no registry of packages has the API server. It needs kube-apiserver and
kube-controller-manager (``go build ./cmd/kube-apiserver ./cmd/kube-controller-manager`` in the source of Kubernetes),
etcd and openssl::

    .venv/bin/python tests/harness/control_plane.py --binaries DIR [--crds DIR] [NAME ...]

A scenario is a function below; a name chooses those whose names contain it. Each prints a line, and the program exits
with 1 if one has failed. The program plays the kubelet: it binds pods to machines and writes their status. The
controllers of JobSet and Kubeflow Trainer do not run: of their resources the schema and its rules are checked, and the
Job that they would make is created instead (``pods.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import http.client
import json
import re
import ssl
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pods import INDEX, Job, Manifest, documents, job_of_jobset, jobset_of_trainjob, of_kind
from rig import free_port

from elastic_core.exit_codes import ExitCode
from elastic_kubernetes.elastic_job import ElasticJob, read_documents
from elastic_kubernetes.manifests import TARGETS, PodOptions

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "kubernetes"
DATA = ROOT / "tests" / "data" / "kubernetes"
T = TypeVar("T")
PATIENCE = 120.0
GOODBYE = 10.0
TOKEN = "by-hand"
CONTROLLERS = ["job", "statefulset", "endpointslice", "disruption", "node-lifecycle", "taint-eviction"]
CONTROLLERS += ["pod-garbage-collector", "garbage-collector"]
CLUSTER_WIDE = {"namespaces", "nodes", "customresourcedefinitions", "clustertrainingruntimes"}
PLURALS = {"NetworkPolicy": "networkpolicies"}
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
TERMINATED = {"Failed", "Succeeded"}


class RefusedError(Exception):
    """The API server refused a request; the message is its own."""


@dataclass(frozen=True, slots=True)
class Api:
    """The API server."""

    port: int
    context: ssl.SSLContext

    def ask(self, method: str, path: str, body: object = None, content: str = "application/json") -> Any:
        """Send a request, and return the decoded answer."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": content}
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=30)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        if response.status >= http.client.BAD_REQUEST:
            raise RefusedError(f"{method} {path}: {response.status} {json.loads(data).get('message', data)}")
        return data.decode() if "json" not in (response.headers["Content-Type"] or "") else json.loads(data)

    def create(self, manifest: Manifest, namespace: str = "default") -> Any:
        """Create what a manifest describes; a field that the API does not know is an error."""
        path = collection(manifest, manifest["metadata"].get("namespace", namespace))
        return self.ask("POST", f"{path}?fieldValidation=Strict", manifest)

    def pods(self, namespace: str, index: int | None = None) -> list[Any]:
        """Return the pods of a namespace that have not ended and are not being deleted, of all indexes or one."""
        found = self.ask("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        live = [p for p in found if p["status"]["phase"] not in TERMINATED and "deletionTimestamp" not in p["metadata"]]
        ordered = sorted(live, key=lambda pod: int(pod["metadata"].get("annotations", {}).get(INDEX, 0)))
        return [pod for pod in ordered if index is None or pod["metadata"]["annotations"][INDEX] == str(index)]

    def job(self, namespace: str, name: str = "train") -> Any:
        """Return a Job."""
        return self.ask("GET", f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}")


def collection(manifest: Manifest, namespace: str) -> str:
    """Return the path of the resources of a manifest's kind."""
    version, kind = manifest["apiVersion"], manifest["kind"]
    plural = PLURALS.get(kind, f"{kind.lower()}s")
    group = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{group}/{plural}" if plural in CLUSTER_WIDE else f"{group}/namespaces/{namespace}/{plural}"


def wait_for(what: str, ask: Callable[[], T]) -> T:
    """Ask until the answer is true, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE:g} s: {what}")
        time.sleep(0.2)
    return answer


def condition(status: Manifest, kind: str) -> Any:
    """Return the condition of a type that is true, or None."""
    conditions = [one for one in status.get("conditions") or [] if one["type"] == kind and one["status"] == "True"]
    return conditions[0] if conditions else None


@contextmanager
def control_plane(binaries: Path, folder: Path) -> Iterator[Api]:
    """Run etcd, the API server and the controllers in a folder, on loopback ports."""
    etcd_port, peer_port, port, controllers_port = (free_port() for _ in range(4))
    key = folder / "service-accounts.pem"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,1,system:masters\n", encoding="utf-8")
    client, peer = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peer_port}"
    etcd = ["etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={client}"]
    etcd += [f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}"]
    etcd += [f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"]
    api_server = [str(binaries / "kube-apiserver"), f"--etcd-servers={client}", f"--secure-port={port}"]
    api_server += [
        "--bind-address=127.0.0.1",
        f"--cert-dir={folder / 'certificates'}",
        "--endpoint-reconciler-type=none",
    ]
    api_server += [f"--token-auth-file={folder / 'tokens.csv'}", "--authorization-mode=AlwaysAllow"]
    api_server += ["--service-cluster-ip-range=10.0.0.0/24", "--service-account-issuer=https://localhost"]
    api_server += [f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"]
    api_server += ["--disable-admission-plugins=ServiceAccount"]  # nothing here makes the accounts and tokens of pods
    api_server += ["--default-unreachable-toleration-seconds=1", "--default-not-ready-toleration-seconds=1"]
    manager = [str(binaries / "kube-controller-manager"), f"--kubeconfig={folder / 'kubeconfig'}"]
    manager += [f"--secure-port={controllers_port}", "--bind-address=127.0.0.1", "--leader-elect=false"]
    manager += [f"--controllers={','.join(f'{name}-controller' for name in CONTROLLERS)}"]
    manager += ["--node-monitor-grace-period=24h", "--node-startup-grace-period=24h"]  # machines here send no heartbeat
    cluster = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}],
        "current-context": "here",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(kubeconfig), encoding="utf-8")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it made its certificate itself, on this host
    api, running = Api(port, context), []

    def start(command: Sequence[str]) -> None:
        with (folder / f"{Path(command[0]).name}.log").open("w", encoding="utf-8") as log:
            running.append(subprocess.Popen(command, stdout=log, stderr=log))

    def is_ready() -> bool:
        assert all(process.poll() is None for process in running), f"a server has exited: see its log in {folder}"
        try:
            return bool(api.ask("GET", "/readyz") == "ok")
        except (OSError, RefusedError, ValueError):
            return False

    try:
        start(etcd)
        start(api_server)
        wait_for("the API server is ready", is_ready)
        start(manager)
        yield api
    finally:
        for process in reversed(running):  # the store last: the API server waits for it
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GOODBYE)
            process.kill()
            process.wait()


@dataclass(frozen=True, slots=True)
class Kubelet:
    """A small scheduler and kubelet: pods are bound to machines, run, and end."""

    api: Api

    def add_machine(self, name: str) -> None:
        """Add a machine that is ready."""
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        self.report(name, "True")

    def report(self, machine: str, ready: str) -> None:
        """Write whether a machine is ready: True, False, or Unknown when it has vanished."""
        now = {"type": "Ready", "status": ready, "reason": "ByHand", "lastTransitionTime": timestamp()}
        self.api.ask("PATCH", f"/api/v1/nodes/{machine}/status", {"status": {"conditions": [now]}}, STRATEGIC)

    def run(self, pod: Manifest, machine: str) -> None:
        """Bind a pod to a machine and start its container."""
        target = {"apiVersion": "v1", "kind": "Node", "name": machine}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod["metadata"]["name"]},
            "target": target,
        }
        self.api.ask("POST", f"{path_of(pod)}/binding", binding)
        address = f"10.1.0.{int(pod['metadata']['annotations'][INDEX]) + 1}"
        state = {"running": {"startedAt": timestamp()}}
        self._write(pod, {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}, state)

    def end(self, pod: Manifest, code: int) -> None:
        """Let the container of a pod exit with a code; a pod that is being deleted is gone then."""
        ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "finishedAt": timestamp()}
        self._write(pod, {"phase": "Succeeded" if code == 0 else "Failed"}, {"terminated": ended})
        if "deletionTimestamp" in pod["metadata"]:
            self.delete(pod)

    def delete(self, pod: Manifest) -> None:
        """Delete a pod at once, as the kubelet does when it has ended, and ``kubectl delete --force`` before."""
        self.api.ask(
            "DELETE", path_of(pod), {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        )

    def end_deleted(self, namespace: str, code: int = 143) -> None:
        """Let the pods of a namespace that are being deleted exit, as after SIGTERM."""
        for pod in self.api.ask("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]:
            if "deletionTimestamp" in pod["metadata"] and pod["status"]["phase"] not in TERMINATED:
                self.end(pod, code)

    def _write(self, pod: Manifest, status: Manifest, state: Manifest) -> None:
        (container,) = pod["spec"]["containers"]
        here = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
        status = {**status, "containerStatuses": [{**here, "ready": "running" in state, "state": state}]}
        self.api.ask("PATCH", f"{path_of(pod)}/status", {"status": status}, STRATEGIC)


def path_of(pod: Manifest) -> str:
    """Return the path of a pod."""
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def timestamp() -> str:
    """Return the time as the API has it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def namespace_of(api: Api, name: str) -> str:
    """Create a namespace."""
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


def start(kubelet: Kubelet, name: str) -> tuple[str, list[Any]]:
    """Create job.yaml in a namespace and run its three pods, on a machine each; return the namespace and the pods."""
    api, namespace = kubelet.api, namespace_of(kubelet.api, name)
    for manifest in documents(DEPLOY / "job.yaml"):
        api.create(manifest, namespace)
    wait_for("the Job has its pods", lambda: len(api.pods(namespace)) == 3)
    pods = api.pods(namespace)
    for index, pod in enumerate(pods):
        kubelet.add_machine(f"{name}-machine-{index}")
        kubelet.run(pod, f"{name}-machine-{index}")
    return namespace, api.pods(namespace)


def rendered() -> dict[str, list[Manifest]]:
    """Return what ``elastic render`` prints of the manifest here and of torchelastic's sample, for each target."""
    found = {}
    for path, endpoint in ((DEPLOY / "elasticjob.yaml", None), (DATA / "imagenet.yaml", "etcd-service:2379")):
        (job,) = read_documents(path.read_text(encoding="utf-8"), path.name, endpoint)
        assert isinstance(job, ElasticJob)
        for target, render in TARGETS.items():
            found[f"{path.stem}-as-{target}"] = render(job, PodOptions(backend="etcd"))
    return found


def replaced(api: Api, pod: Manifest) -> Any:
    """Wait until another pod has the index of a pod, and return it."""
    namespace, uid, index = (pod["metadata"][key] for key in ("namespace", "uid", "annotations"))

    def other() -> list[Any]:
        return [one for one in api.pods(namespace, int(index[INDEX])) if one["metadata"]["uid"] != uid]

    return wait_for("another pod of the index", other)[0]


def failed(api: Api, kubelet: Kubelet, namespace: str) -> Any:
    """Wait until a Job has failed, and return the condition; its other pods exit after SIGTERM."""

    def is_failed() -> Any:
        kubelet.end_deleted(namespace)
        return condition(api.job(namespace)["status"], "Failed")

    return wait_for("the Job has failed", is_failed)


# ---------------------------------------------------------------------------------------------- scenarios


def every_manifest_is_accepted(api: Api, kubelet: Kubelet) -> str:
    """Create those of deploy/kubernetes, the rendered ones, and the Jobs that JobSet and Trainer would make of them."""
    groups = {path.stem: documents(path) for path in sorted(DEPLOY.glob("*.yaml")) if path.stem != "elasticjob"}
    groups["trainjob"] = [groups.pop("trainer-runtime")[0], *groups["trainjob"]]
    accepted = []
    for name, manifests in {**groups, **rendered()}.items():
        namespace = namespace_of(api, f"accepted-{name}")
        for manifest in manifests:
            manifest["metadata"].pop("namespace", None)
            api.create(manifest, namespace)
        kinds = {manifest["kind"]: manifest for manifest in manifests}
        if runtime := kinds.get("TrainingRuntime") or kinds.get("ClusterTrainingRuntime"):
            kinds["JobSet"] = jobset_of_trainjob(runtime, kinds["TrainJob"])
            api.create(kinds["JobSet"], namespace)
        if "JobSet" in kinds:
            create_job(api, job_of_jobset(kinds["JobSet"]), namespace)
        accepted.append(f"{name} ({', '.join(kinds)})")
    return "; ".join(accepted)


def create_job(api: Api, job: Job, namespace: str) -> None:
    """Create a Job as another controller would."""
    job.spec["template"].setdefault("metadata", {})["labels"] = dict(job.labels)
    api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job.name}, "spec": job.spec}, namespace)


def an_invalid_object_is_refused(api: Api, kubelet: Kubelet) -> str:
    """Check that the server checks: an unknown field, a value that only its code checks, a rule of a CRD in CEL."""
    namespace = namespace_of(api, "refused")
    said = []
    misspelled = documents(DEPLOY / "jobset.yaml")[0]
    misspelled["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurPolicy"] = {}
    impossible = of_kind("Job", documents(DEPLOY / "job.yaml"))
    impossible["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    broken = documents(DEPLOY / "trainjob.yaml")[0]
    broken["spec"]["trainer"]["numProcPerNode"] = 0
    for manifest in (misspelled, impossible, broken):
        try:
            api.create(manifest, namespace)
        except RefusedError as error:
            said.append(str(error).split(": ", 1)[1][:160])
    assert len(said) == 3, said
    return "; ".join(said)


def pods_have_indexes_and_names(api: Api, kubelet: Kubelet) -> str:
    """Look at the pods of the Indexed Job: indexes, host names, the Service's subdomain, names before readiness."""
    namespace, pods = start(kubelet, "names")
    uid = api.job(namespace)["metadata"]["uid"]
    for index, pod in enumerate(pods):
        spec, labels = pod["spec"], pod["metadata"]["labels"]
        assert pod["metadata"]["annotations"][INDEX] == str(index)
        assert (spec["hostname"], spec["subdomain"]) == (f"train-{index}", "train")
        assert labels["batch.kubernetes.io/controller-uid"] == uid, "JOB_UID"
        assert labels["batch.kubernetes.io/job-name"] == "train", "the Service's selector"

    def names() -> bool:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        endpoints = [one for found in api.ask("GET", path)["items"] for one in found.get("endpoints") or []]
        return {one.get("hostname") for one in endpoints} == {f"train-{index}" for index in range(3)}

    wait_for("the Service has the names of pods that are not ready", names)
    return f"{', '.join(pod['metadata']['name'] for pod in pods)}"


def a_job_fails_at(code: int, api: Api, kubelet: Kubelet) -> str:
    """Fail a pod: the others are deleted (FailJob), and the JobSet's rule finds its codes in the message."""
    namespace, pods = start(kubelet, f"fail-job-{code}")
    kubelet.end(pods[1], code)
    found = failed(api, kubelet, namespace)
    assert found["reason"] == "PodFailurePolicy", found
    jobset = documents(DEPLOY / "jobset.yaml")[0]
    (pattern,) = jobset["spec"]["failurePolicy"]["rules"][0]["onJobFailureMessagePatterns"]
    assert bool(re.search(pattern, found["message"])) == (code in {75, 79}), found
    return str(found["message"])


def a_job_with_a_failed_index_fails(api: Api, kubelet: Kubelet) -> str:
    """Give up an index, and end the other pods with 0: the Job fails, which is why no code of ours fails an index."""
    namespace = namespace_of(api, "failed-index")
    manifest = of_kind("Job", documents(DEPLOY / "job.yaml"))
    manifest["spec"]["backoffLimitPerIndex"] = 0
    api.create(manifest, namespace)
    wait_for("the Job has its pods", lambda: len(api.pods(namespace)) == 3)
    for index, pod in enumerate(api.pods(namespace)):
        kubelet.add_machine(f"{namespace}-machine-{index}")
        kubelet.run(pod, f"{namespace}-machine-{index}")
    for pod, code in zip(api.pods(namespace), (0, ExitCode.UNHEALTHY, 0), strict=True):
        kubelet.end(pod, code)
    found = failed(api, kubelet, namespace)
    assert found["reason"] == "FailedIndexes", found
    return f"{found['reason']}: {found['message']}, though successPolicy was met"


def a_pod_is_replaced_at(code: int, counted: int, api: Api, kubelet: Kubelet) -> str:
    """Fail a pod twice: another one has its index each time, after a wait, and the failures are counted or not."""
    namespace, pods = start(kubelet, f"replace-{code}")
    waits, pod = [], pods[1]
    for number in range(2):
        began = time.monotonic()
        kubelet.end(pod, code)
        pod = replaced(api, pod)
        waits.append(time.monotonic() - began)
        annotations = pod["metadata"]["annotations"]
        assert annotations["batch.kubernetes.io/job-index-failure-count"] == str((number + 1) * counted), annotations
        kubelet.run(pod, f"{namespace}-machine-1")
    wait_for("the Job has counted", lambda: api.job(namespace)["status"].get("failed", 0) == 2 * counted)
    return f"another pod after {waits[0]:.0f} s, a third after {waits[1]:.0f} s, counted: {2 * counted}"


def an_evicted_pod_is_replaced(api: Api, kubelet: Kubelet) -> str:
    """Evict a pod: the API server writes DisruptionTarget, which precedes every exit code, 1 among them."""
    namespace, pods = start(kubelet, "evicted")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pods[1]["metadata"]["name"]}}
    api.ask("POST", f"{path_of(pods[1])}/eviction", eviction)
    pod = api.ask("GET", path_of(pods[1]))
    reason = condition(pod["status"], "DisruptionTarget")["reason"]
    assert not api.pods(namespace, 1), "not before it has ended"
    kubelet.end_deleted(namespace, 1)
    replaced(api, pod)
    status = api.job(namespace)["status"]
    assert not status.get("failed"), status
    return f"{reason}, exit code 1: replaced, counted: 0"


def a_job_completes(api: Api, kubelet: Kubelet) -> str:
    """End two of three pods with 0: the one that has no machine is deleted, and the Job is complete."""
    namespace = namespace_of(api, "complete")
    api.create(of_kind("Job", documents(DEPLOY / "job.yaml")), namespace)
    wait_for("the Job has its pods", lambda: len(api.pods(namespace)) == 3)
    for index, pod in enumerate(api.pods(namespace)[:2]):
        kubelet.add_machine(f"complete-machine-{index}")
        kubelet.run(pod, f"complete-machine-{index}")
    for pod in api.pods(namespace)[:2]:
        kubelet.end(pod, 0)
    found = wait_for("the Job is complete", lambda: condition(api.job(namespace)["status"], "Complete"))
    wait_for("the pending pod is gone", lambda: not api.pods(namespace))
    return f"{found['reason']}: {found['message']}"


def a_job_is_resized(api: Api, kubelet: Kubelet) -> str:
    """Patch the Job as ``kubectl patch`` does it: to four pods, to two, and to fewer than the minimum."""
    namespace, _ = start(kubelet, "resized")
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs/train"

    def has_hosts(names: list[str]) -> bool:
        return [pod["spec"]["hostname"] for pod in api.pods(namespace)] == names

    for size in (4, 2):
        api.ask("PATCH", path, {"spec": {"parallelism": size, "completions": size}}, STRATEGIC)
        wait_for(f"{size} pods", partial(has_hosts, [f"train-{index}" for index in range(size)]))
        kubelet.end_deleted(namespace)
    status = api.job(namespace)["status"]
    assert not status.get("failed"), status
    try:
        api.ask("PATCH", path, {"spec": {"parallelism": 1, "completions": 1}}, STRATEGIC)
    except RefusedError as error:
        return f"4, 2; 1 is refused: {error}"
    return "4, 2; 1 is accepted"


def a_machine_vanishes(api: Api, kubelet: Kubelet) -> str:
    """Lose a machine: its pod is marked and deleted, and replaced only when the Node is deleted as well."""
    namespace, pods = start(kubelet, "vanished")
    kubelet.report(f"{namespace}-machine-1", "Unknown")
    pod = wait_for("its pod is deleted", lambda: deleted(api, pods[1]))
    reason = condition(pod["status"], "DisruptionTarget")["reason"]
    kubelet.delete(pod)
    time.sleep(30)
    assert not api.pods(namespace, 1), "not even after `kubectl delete pod --force`"
    api.ask("DELETE", f"/api/v1/nodes/{namespace}-machine-1")
    began = time.monotonic()
    replaced(api, pod)
    assert not api.job(namespace)["status"].get("failed")
    took = time.monotonic() - began
    return f"{reason}: not replaced, nor after --force, but {took:.0f} s after its Node was deleted; counted: 0"


def deleted(api: Api, pod: Manifest) -> Any:
    """Return a pod if it is there and being deleted, or else None."""
    found = api.ask("GET", path_of(pod))
    return found if "deletionTimestamp" in found["metadata"] else None


def stores_have_their_pods(api: Api, kubelet: Kubelet) -> str:
    """Create the stores: each StatefulSet makes a pod, and a claim for its volume."""
    names = []
    for name in ("etcd", "redis"):
        namespace = namespace_of(api, f"store-{name}")
        for manifest in documents(DEPLOY / f"{name}.yaml"):
            api.create(manifest, namespace)
        (pod,) = wait_for("the store's pod", partial(api.pods, namespace))
        claims = api.ask("GET", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims")["items"]
        names += [pod["metadata"]["name"], *(claim["metadata"]["name"] for claim in claims)]
    return ", ".join(names)


def named(name: str, scenario: Callable[..., str], *arguments: object) -> tuple[str, Callable[[Api, Kubelet], str]]:
    """Return a scenario with its name."""
    return name.replace("_", " "), partial(scenario, *arguments)


REPLACED = (
    ExitCode.UNREACHABLE,
    ExitCode.INTERNAL,
    ExitCode.REFUSED,
    ExitCode.WITHDRAWN,
    ExitCode.UNHEALTHY,
    ExitCode.STORE_LOST,
    137,
)
SCENARIOS: list[tuple[str, Callable[[Api, Kubelet], str]]] = [
    *(
        named(one.__name__, one)
        for one in (
            every_manifest_is_accepted,
            an_invalid_object_is_refused,
            pods_have_indexes_and_names,
            a_job_completes,
            a_job_with_a_failed_index_fails,
            an_evicted_pod_is_replaced,
            a_job_is_resized,
            a_machine_vanishes,
            stores_have_their_pods,
        )
    ),
    *(named(f"a job fails at {int(code)}", a_job_fails_at, int(code)) for code in (1, 2, 75, 79)),
    *(named(f"a pod is replaced at {int(code)}", a_pod_is_replaced_at, int(code), 1) for code in REPLACED),
    named("a pod is replaced at 143", a_pod_is_replaced_at, 143, 0),
]


def install(api: Api, crds: Path) -> None:
    """Install the definitions of JobSet and Kubeflow Trainer."""

    def is_served(where: str) -> bool:
        return bool(condition(api.ask("GET", where).get("status", {}), "Established"))

    for path in sorted(crds.glob("*.yaml.gz")):
        definition = yaml.safe_load(gzip.decompress(path.read_bytes()))
        if definition["apiVersion"] == "apiextensions.k8s.io/v1":  # that of the ElasticJob is older
            api.create(definition)
            where = f"{collection(definition, '')}/{definition['metadata']['name']}"
            wait_for(f"{where} is served", partial(is_served, where))


def main() -> int:
    """Run the scenarios, all at once, each in a namespace of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--binaries", type=Path, required=True, help="where kube-apiserver and so on are")
    parser.add_argument("--crds", type=Path, default=DATA, help="where the CRDs are (default: %(default)s)")
    parser.add_argument("names", nargs="*", metavar="NAME", help="run the scenarios whose names contain one of these")
    arguments = parser.parse_args()
    chosen = [one for one in SCENARIOS if not arguments.names or any(name in one[0] for name in arguments.names)]
    folder = Path(tempfile.mkdtemp(prefix="control-plane-"))
    held = True
    with control_plane(arguments.binaries, folder) as api, ThreadPoolExecutor(len(chosen)) as threads:
        print(f"Kubernetes {api.ask('GET', '/version')['gitVersion']}; logs are in {folder}", flush=True)
        install(api, arguments.crds)
        results = [(name, threads.submit(scenario, api, Kubelet(api))) for name, scenario in chosen]
        for name, result in results:
            try:
                print(f"holds: {name}: {result.result()}", flush=True)
            except Exception:
                held = False
                print(f"DOES NOT HOLD: {name}: {traceback.format_exc()}", flush=True)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
