"""The manifests of Kubernetes as processes: each pod's command and environment, over the store's own manifest.

There is no kubelet and no controller here; ``pods`` does what they would do with these manifests.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import hosts
from PIL import Image
from pods import PYTHON, Job, Pod, PodCluster, documents, job_of, job_of_jobset, jobset_of_trainjob, of_kind
from rig import EXAMPLES, WARM, WORKERS, Rig

from elastic_core.exit_codes import ExitCode, signalled
from elastic_kubernetes.elastic_job import ElasticJob, read_documents
from elastic_kubernetes.manifests import PodOptions, as_job, as_trainjob

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy" / "kubernetes"
SAMPLE = ROOT / "tests" / "data" / "kubernetes" / "imagenet.yaml"
ARCHITECTURE = "resnet18"
HERE = {**WARM, "OMP_NUM_THREADS": "1"}  # pods share the cores of this machine
LEFT = signalled(signal.SIGTERM)


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """The file that ends the job."""
    return tmp_path / "done"


@pytest.fixture
def cluster(rig: Rig, tmp_path: Path, done: Path) -> Iterator[PodCluster]:
    """Machines for a store and some nodes; the image has a script that takes notices."""
    script = [str(WORKERS / "graceful.py"), "--until", str(done), "--state", str(tmp_path / "state")]
    image = {
        **PYTHON,
        "/workspace/train.py": script,
        "--nproc_per_node=auto": ["--nproc_per_node=1"],  # this machine has no GPUs, and any number of cores
        "/data": [str(tmp_path)],
    }
    with hosts(7) as machines:
        cluster = PodCluster(rig, machines, image)
        try:
            yield cluster
        finally:
            cluster.delete()


def store(cluster: PodCluster, name: str) -> None:
    cluster.serve(documents(DEPLOY / f"{name}.yaml")).agent.wait_for("eady to (serve client|accept conn)")


def start(cluster: PodCluster, job: Job) -> list[Pod]:
    return [cluster.start(job, index) for index in range(job.indexes)]


def train(pods: list[Pod], *, count: int = 1) -> None:
    """Wait until these pods, and no others, have taken some steps together."""
    for pod in pods:
        pod.agent.wait_for_report("stepped", count=count, world_size=len(pods))


def steps(pods: list[Pod]) -> list[int]:
    """Return how many steps each pod has taken in rounds of so many pods, as there may be if one is late."""
    return [len(pod.agent.reports("stepped", world_size=len(pods))) for pod in pods]


def train_further(pods: list[Pod], earlier: list[int]) -> None:
    """Wait until these pods, and no others, have taken a step beyond what :func:`steps` has returned."""
    for pod, count in zip(pods, earlier, strict=True):
        pod.agent.wait_for_report("stepped", count=count + 1, world_size=len(pods))


def finish(done: Path, *pods: Pod) -> None:
    done.touch()
    for pod in pods:
        assert pod.agent.exit_code() == 0, pod.agent.output


def test_a_job_replaces_a_lost_pod_and_a_late_one_trains_nothing(cluster: PodCluster, done: Path) -> None:
    store(cluster, "etcd")
    job = job_of(documents(DEPLOY / "job.yaml"))
    first, second, third = start(cluster, job)
    train([first, second, third])
    assert f"as {first.name}" in first.agent.output, "messages name the pod"
    large = re.search(r"round (\d+): 3 worker", first.agent.wait_for(r"round \d+: 3 worker"))
    assert large is not None
    earlier = steps([first, second])
    third.kill()
    train_further([first, second], earlier)
    first.agent.wait_for(f"round {int(large[1]) + 1}: 2 worker")
    replaced = cluster.start(job, 2)
    replaced.agent.wait_for_report("stepped", world_size=3)
    finish(done, first, second, replaced)
    late = cluster.start(job, 2)
    assert late.agent.exit_code() == 0, "its machine came when the Job was over: the Job's uid says so"
    assert not late.agent.reports("training")


def test_a_job_that_is_created_again_is_a_new_run(cluster: PodCluster, done: Path) -> None:
    store(cluster, "etcd")
    done.touch()
    for _ in range(2):
        pods = start(cluster, job_of(documents(DEPLOY / "job.yaml")))[:3]
        for pod in pods:
            assert pod.agent.exit_code() == 0, pod.agent.output
            assert pod.agent.reports("training"), "the first one's end is not this one's"


def test_a_pod_of_a_jobset_that_is_deleted_leaves_without_a_lost_step(cluster: PodCluster, done: Path) -> None:
    store(cluster, "etcd")
    jobset = of_kind("JobSet", documents(DEPLOY / "jobset.yaml"))
    first, second, third = start(cluster, job_of_jobset(jobset))
    train([first, second, third])
    earlier = steps([first, third])
    second.terminate()
    assert second.agent.exit_code(second.grace_period) == LEFT
    train_further([first, third], earlier)
    (at,) = {r["step"] for pod in (first, second, third) for r in pod.agent.reports("stopped", world_size=3)}
    began = {pod.agent.reports("training", world_size=2)[-1]["step"] for pod in (first, third)}
    assert began == {at}, "the others go on after the step at which all have stopped"
    finish(done, first, third)


def test_commands_in_a_pod_find_its_job(cluster: PodCluster, done: Path) -> None:
    store(cluster, "etcd")
    first, second, third = pods = start(cluster, job_of(documents(DEPLOY / "job.yaml")))
    train(pods)
    status = first.execute(*PYTHON["elastic"], "status")
    assert all(pod.name in status.stdout for pod in pods), status
    # What `elastic render` lets the kubelet do before it stops a container that passes no signal on.
    drained = second.execute("sh", "-c", f'exec {" ".join(PYTHON["elastic"])} drain "$ELASTIC_HOST_NAME"')
    assert drained.stdout == f"1 agent on {second.name} leaves.\n", drained
    assert second.agent.exit_code(second.grace_period) == LEFT, "as after SIGTERM"
    train([first, third])
    finish(done, first, third)


def test_a_trainjob_over_redis_loses_a_pod(cluster: PodCluster, done: Path) -> None:
    store(cluster, "redis")
    runtime = of_kind("ClusterTrainingRuntime", documents(DEPLOY / "trainer-runtime.yaml"))
    train_job = of_kind("TrainJob", documents(DEPLOY / "trainjob.yaml"))
    assert train_job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    pods = start(cluster, job_of_jobset(jobset_of_trainjob(runtime, train_job)))
    train(pods)
    worker = pods[0].agent.workers()
    mounts = Path(f"/proc/{worker[min(worker)]}/mounts").read_text(encoding="utf-8")
    assert re.search(r"^\S+ /dev/shm tmpfs \S*size=8388608k", mounts, re.MULTILINE), "what sizeLimit says"
    pods[1].kill()
    train([pods[0], pods[2]])
    finish(done, pods[0], pods[2])


def test_a_wrong_flag_ends_each_pod_with_the_code_that_fails_the_job(cluster: PodCluster) -> None:
    store(cluster, "etcd")
    job = job_of(documents(DEPLOY / "job.yaml"))
    job.spec["template"]["spec"]["containers"][0]["args"].insert(0, "--nproc_per_mode=1")
    pod = cluster.start(job, 0)
    assert pod.agent.exit_code() == ExitCode.USAGE
    (rule,) = [r for r in job.spec["podFailurePolicy"]["rules"] if 2 in r.get("onExitCodes", {}).get("values", ())]
    assert rule["action"] == "FailJob"


@pytest.fixture
def sample(cluster: PodCluster, tmp_path: Path) -> PodCluster:
    """A cluster with the image of the sample: its script's place is taken by one with the same arguments."""
    workspace = tmp_path / "workspace"
    (workspace / "examples").mkdir(parents=True)
    (workspace / "examples" / "imagenet").symlink_to(EXAMPLES / "imagenet")
    for part, count in (("train", 3), ("val", 1)):
        for label, colour in (("dark", 40), ("light", 200)):
            folder = workspace / "data" / "tiny-imagenet-200" / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (64, 64), (colour, colour, number)).save(folder / f"{number}.png")
    small = {f"--arch={ARCHITECTURE}": [f"--arch={ARCHITECTURE}", "--image-size=32"], "--epochs=20": ["--epochs=6"]}
    cluster.image = {**cluster.image, **small, "/workspace/": [str(workspace)]}
    return cluster


def test_the_elastic_job_of_the_documents_is_rendered_and_trains(sample: PodCluster) -> None:
    store(sample, "etcd")
    (elastic_job,) = read_documents(SAMPLE.read_text(encoding="utf-8"), SAMPLE.name, "etcd:2379")
    assert isinstance(elastic_job, ElasticJob)
    job = job_of(as_job(elastic_job, PodOptions(backend="etcd")))
    job.spec["template"]["spec"]["containers"][0]["env"] += [{"name": name, "value": on} for name, on in HERE.items()]
    first, second = start(sample, job)
    together = f"2 workers: {ARCHITECTURE} "
    assert sample.rig.wait_until(lambda: together in first.agent.output + second.agent.output)
    second.kill()
    first.agent.wait_for(f"^1 workers: {ARCHITECTURE} ")
    replaced = sample.start(job, 1)
    for pod in (first, replaced):
        assert pod.agent.exit_code() == 0, pod.agent.output
    assert "epoch 6/6" in first.agent.output + replaced.agent.output


def test_the_sample_as_a_trainjob_has_the_same_command_line() -> None:
    (elastic_job,) = read_documents(SAMPLE.read_text(encoding="utf-8"), SAMPLE.name, "etcd:2379")
    assert isinstance(elastic_job, ElasticJob)
    runtime, train_job, *_ = as_trainjob(elastic_job, PodOptions(backend="etcd"))
    job = job_of_jobset(jobset_of_trainjob(runtime, train_job))
    container = job.spec["template"]["spec"]["containers"][0]
    as_args = as_job(elastic_job, PodOptions(backend="etcd"))[1]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert container["args"] == as_args
