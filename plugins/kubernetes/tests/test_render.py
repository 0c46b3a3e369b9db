"""``elastic render``: what it prints, and what people are told where an ElasticJob is wrong."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from manifest_schemas import DATA, check

from elastic_core.cli.commands import Elastic, run
from elastic_core.errors import UsageError
from elastic_kubernetes.command import backend_of
from elastic_kubernetes.documents import write
from elastic_kubernetes.elastic_job import parse_elastic_job
from elastic_kubernetes.manifests import TARGETS as RENDERED, Launch, PodOptions, find_launch, format_bytes, parse_bytes

SAMPLE = DATA / "imagenet.yaml"
HEAD = "apiVersion: elastic.pytorch.org/v1alpha1\nkind: ElasticJob\nspec:\n  replicaSpecs: {Worker: {template: {}}}\n"
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def job() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(SAMPLE.read_text(encoding="utf-8"))
    found["spec"]["rdzvEndpoint"] = "etcd-service:2379"
    worker(found)["template"]["spec"]["containers"][0]["image"] = "train:1"
    return found


def worker(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["replicaSpecs"]["Worker"]
    return found


def pod(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = worker(job)["template"]["spec"]
    return found


def container(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod(job)["containers"][0]
    return found


@pytest.fixture
def render(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[list[dict[str, Any]], str]]:
    """Renders a document, and returns the manifests and what was said on stderr."""

    def rendered(document: object, *flags: str, code: int = 0) -> tuple[list[dict[str, Any]], str]:
        path = tmp_path / "job.yaml"
        text = document if isinstance(document, str) else yaml.safe_dump(document)
        path.write_text(text, encoding="utf-8")
        assert run(Elastic(), ["render", str(path), *flags]) == code
        out, err = capsys.readouterr()
        if code:
            assert out == "", "nothing that kubectl could apply"
        return list(yaml.safe_load_all(out)), err.replace(str(path), "job.yaml")

    return rendered


WRONG: list[tuple[Change, str, str]] = [
    (lambda j: j.update(kind="PyTorchJob"), "kind 'PyTorchJob' of apiVersion", "It takes ElasticJobs"),
    (
        lambda j: j.update(apiVersion="v1"),
        "kind 'ElasticJob' of apiVersion 'v1'",
        "apiVersion elastic.pytorch.org/v1alpha1",
    ),
    (lambda j: j.pop("metadata"), "metadata is missing.", ""),
    (lambda j: j["metadata"].update(name="Image_Net"), "metadata.name 'Image_Net' is not a name", "small letters"),
    (lambda j: j["metadata"].update(name="a" * 41), "has 41 characters; 40 are allowed", "63 characters"),
    (lambda j: j["metadata"].update(name=7), "metadata.name 7 is not a text.", "quotes"),
    (lambda j: j["metadata"].update(namespace="My Jobs"), "metadata.namespace 'My Jobs' is not a namespace", ""),
    (lambda j: j["metadata"].update(labels={"team": 7}), "metadata.labels.team 7 is not a text.", "quotes"),
    (lambda j: j["spec"].update(minReplica=1), "no field spec.minReplica. Did you mean 'minReplicas'?", "rdzvEndpoint"),
    (lambda j: j["spec"].pop("rdzvEndpoint"), "spec.rdzvEndpoint is missing.", "HOST:PORT"),
    (
        lambda j: j["spec"].update(rdzvEndpoint="etcd 2379"),
        "spec.rdzvEndpoint 'etcd 2379' is not an address",
        "HOST:PORT",
    ),
    (
        lambda j: j["spec"].update(rdzvEndpoint="<etcd>:2379"),
        "spec.rdzvEndpoint '<etcd>:2379' is a placeholder",
        "--rdzv_",
    ),
    (lambda j: j["spec"].update(minReplicas=0), "spec.minReplicas 0 is not a whole number of at least 1.", ""),
    (lambda j: j["spec"].update(minReplicas="2"), "spec.minReplicas '2' is not a whole number", ""),
    (
        lambda j: j["spec"].update(minReplicas=3),
        "spec.minReplicas 3 is greater than spec.maxReplicas, 2.",
        "never start",
    ),
    (lambda j: j["spec"].update(maxReplicas=1), "spec.replicaSpecs.Worker.replicas 2 is greater than spec.maxRep", ""),
    (
        lambda j: (j["spec"].update(minReplicas=2), worker(j).update(replicas=1)),
        "replicas 1 is less than spec.minRep",
        "",
    ),
    (lambda j: worker(j).update(replicas=True), "spec.replicaSpecs.Worker.replicas True is not a whole number", ""),
    (lambda j: j["spec"].pop("replicaSpecs"), "spec.replicaSpecs is missing.", "Worker"),
    (lambda j: j["spec"].update(replicaSpecs=[]), "spec.replicaSpecs [] is not a mapping of fields.", "name: value"),
    (lambda j: j["spec"]["replicaSpecs"].update(Master={}), "no field spec.replicaSpecs.Master.", "Worker"),
    (lambda j: worker(j).update(restartPolicy="Sometimes"), "restartPolicy 'Sometimes' is not known.", "ExitCode"),
    (lambda j: worker(j).pop("template"), "spec.replicaSpecs.Worker.template is missing.", "containers"),
    (lambda j: worker(j)["template"].pop("spec"), "spec.replicaSpecs.Worker.template.spec is missing.", ""),
    (lambda j: pod(j).update(containers=[]), "containers [] has no container.", ""),
    (
        lambda j: pod(j).update(containers=[{"name": "a"}, {"name": "b"}]),
        "has several containers.",
        "elasticjob-worker",
    ),
    (lambda j: container(j).pop("image"), "containers[0].image is missing.", "elastic-core"),
    (lambda j: container(j).update(args=["--epochs", 20]), "containers[0].args[1] 20 is not a text.", "quotes"),
    (lambda j: container(j).update(env=[{"value": "1"}]), "containers[0].env[0].name is missing.", ""),
    (
        lambda j: container(j)["resources"]["limits"].update(memory="lots"),
        "resources.limits.memory 'lots' is not",
        "16Gi",
    ),
    (
        lambda j: pod(j).update(terminationGracePeriodSeconds=30),
        "terminationGracePeriodSeconds 30 is too short",
        "at least 41",
    ),
    (lambda j: j["spec"].update(backoffLimit=-1), "spec.backoffLimit -1 is not a whole number of at least 0.", ""),
    (lambda j: j["spec"].update(cleanPodPolicy="Never"), "spec.cleanPodPolicy 'Never' is not known.", "Running"),
]


@pytest.mark.parametrize(("change", "message", "hint"), WRONG, ids=[message[:40] for _, message, _ in WRONG])
def test_a_wrong_field_is_named_with_its_value(
    job: dict[str, Any], render: Callable[..., Any], change: Change, message: str, hint: str
) -> None:
    change(job)
    _, err = render(job, code=2)
    said, _, advice = err.removeprefix("elastic: error: ").partition("\n\n")
    assert message in said
    assert hint in advice
    assert "Traceback" not in err


def paths(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every field and member."""
    below: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        below = list(value.items())
    elif isinstance(value, list):
        below = list(enumerate(value))
    return [found for key, member in below for found in [(*path, key), *paths(member, (*path, key))]]


def test_no_value_of_any_field_is_a_defect_of_ours(job: dict[str, Any]) -> None:
    """Either it is rendered, and the API server judges, or people are told."""
    container(job).update(
        command=["sh"],
        env=[{"name": "A", "value": "1"}],
        volumeMounts=[{"name": "v", "mountPath": "/v"}],
        lifecycle={"preStop": {"exec": {"command": ["sync"]}}},
        resources={"limits": {"memory": "1Gi", "cpu": 1}, "requests": {"memory": "1Gi"}},
    )
    worker(job)["template"]["metadata"] = {"labels": {"a": "b"}, "annotations": {"c": "d"}}
    pod(job).update(volumes=[{"name": "v", "emptyDir": {}}], terminationGracePeriodSeconds=90)
    job["spec"].update(backoffLimit=3, activeDeadlineSeconds=9, ttlSecondsAfterFinished=4, cleanPodPolicy="All")
    job["metadata"].update(labels={"a": "b"}, annotations={"a": "b"})
    wrong: list[object] = [
        None,
        7,
        -1,
        2.5,
        "x",
        "",
        [],
        {},
        [None],
        [[]],
        {"a": None},
        {7: 8},
        True,
        "\0",
        float("nan"),
    ]
    options = PodOptions(backend="etcd")
    outcomes = Counter[str]()
    for path in paths(job):
        for value in wrong:
            changed = copy.deepcopy(job)
            place: Any = changed
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            for render_to in RENDERED.values():
                try:
                    elastic_job = parse_elastic_job(changed, "job.yaml")
                    assert write(render_to(elastic_job, options))
                    outcomes["rendered"] += 1
                except UsageError:
                    outcomes["refused"] += 1
    assert min(outcomes.values()) > 100


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "job.yaml is empty."),
        ("a: [1", "job.yaml, line 1, column 6: this is not YAML"),
        ("kind: ElasticJob\nkind: Job\n", "line 2, column 1: this is not YAML: the key 'kind' is there twice."),
        (f"metadata: &loop\n  name: a\n  labels: *loop\n{HEAD}", "metadata.labels.labels"),
        (LAUGHS, "line 1, column 1: this is not YAML: the document has more than 100,000 values with its aliases"),
        ("- 1\n", "the document [1] is not an ElasticJob."),
        ("a: !!python/object:os.system {}\n", "line 1, column 4: this is not YAML: could not determine a constructor"),
        ("kind: ElasticJob\n---\nkind: Service\n", "job.yaml, document 1: kind 'ElasticJob' of apiVersion None"),
    ],
)
def test_a_file_that_is_none_is_told_apart(render: Callable[..., Any], text: str, message: str) -> None:
    _, err = render(text, code=2)
    assert message in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--to=pods"], "'pods' is not one of 'job', 'jobset', 'trainjob'"),
        (["--shm_size=0"], "--shm_size '0' is not an amount of memory."),
        (["--snapshot_memory=two"], "--snapshot_memory 'two' is not an amount of memory."),
        (["--rdzv_endpoint=a b"], "--rdzv_endpoint 'a b' is not an address."),
    ],
)
def test_a_wrong_flag(job: dict[str, Any], render: Callable[..., Any], flags: list[str], message: str) -> None:
    _, err = render(job, *flags, code=2)
    assert message in err


def test_the_sample_as_it_is_needs_an_endpoint_and_an_image(render: Callable[..., Any]) -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    _, err = render(text, code=2)
    assert "is a placeholder" in err
    (_, rendered, *_), err = render(text, "--rdzv-endpoint=etcd:2379")
    assert "has torchelastic's launcher, and not Elastic" in err
    found = rendered["spec"]["template"]["spec"]["containers"][0]
    assert found["command"] == ["elastic", "run"]
    assert (
        found["args"]
        == yaml.safe_load(text)["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["args"]
    )
    _, err = render(text, "--rdzv_endpoint=etcd:2379", "--image=train:1")
    assert err == ""


def test_an_alias_stands_for_its_value(job: dict[str, Any], render: Callable[..., Any]) -> None:
    limits = {"cpu": 4, "memory": "1Gi"}
    container(job)["resources"] = {"limits": limits, "requests": limits}
    text = yaml.safe_dump(job)
    assert "*id" in text
    (_, rendered, *_), _ = render(text)
    found = rendered["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert found["limits"] == found["requests"]


@pytest.mark.parametrize(
    ("endpoint", "warned"),
    [
        ("redis://user:s3cret@redis:6379/0", True),
        ("rediss://:s3cret@redis:6379", True),
        ("redis://redis:6379/0?password=s3cret", True),
        ("redis://user@redis:6379", False),
        ("redis://redis:6379/0", False),
        ("etcd:2379", False),
    ],
)
def test_a_password_in_a_manifest_is_a_warning_with_the_secret_to_make(
    job: dict[str, Any], render: Callable[..., Any], endpoint: str, warned: bool
) -> None:
    job["spec"]["rdzvEndpoint"] = endpoint
    for target in RENDERED:
        _, err = render(job, f"--to={target}")
        assert ("secretKeyRef" in err) == warned
        assert "s3" not in err
    secret = {"name": "PET_RDZV_ENDPOINT", "valueFrom": {"secretKeyRef": {"name": "rendezvous", "key": "endpoint"}}}
    container(job)["env"] = [secret]
    (_, rendered, *_), err = render(job)
    assert err == ""
    assert "s3" not in str(rendered)
    assert secret in rendered["spec"]["template"]["spec"]["containers"][0]["env"]


def test_sizes_policies_and_times_are_taken_over(job: dict[str, Any], render: Callable[..., Any]) -> None:
    job["spec"].update(
        minReplicas=2, maxReplicas=8, backoffLimit=9, activeDeadlineSeconds=60, ttlSecondsAfterFinished=5
    )
    worker(job)["replicas"] = 4
    (_, rendered, *_), err = render(job)
    spec = rendered["spec"]
    assert (spec["parallelism"], spec["completions"]) == (4, 4)
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (9, 60, 5)
    assert spec["successPolicy"] == {"rules": [{"succeededCount": 2}]}
    env = {one["name"]: one.get("value") for one in spec["template"]["spec"]["containers"][0]["env"]}
    assert (env["PET_NNODES"], env["PET_RDZV_BACKEND"]) == ("2:8", "etcd")
    (_, train_job, *_), err = render(job, "--to=trainjob")
    assert train_job["spec"]["trainer"]["numNodes"] == 4
    assert train_job["spec"]["activeDeadlineSeconds"] == 60
    assert "spec.maxReplicas 8 is left out" in err
    assert "ttlSecondsAfterFinished is left out" in err


def test_the_memory_limit_counts_shared_memory_and_snapshots(job: dict[str, Any], render: Callable[..., Any]) -> None:
    container(job)["resources"] = {"limits": {"memory": "10Gi"}, "requests": {"memory": "8G", "cpu": 4}}
    (_, rendered, *_), _ = render(job, "--shm_size=2Gi", "--snapshot_memory=512Mi")
    found = rendered["spec"]["template"]["spec"]["containers"][0]["resources"]
    extra = (2 << 30) + (512 << 20)
    assert found["limits"] == {"memory": "12800Mi"}
    assert parse_bytes(found["requests"]["memory"]) == 8 * 10**9 + extra
    assert found["requests"]["cpu"] == 4


def test_a_shared_memory_of_the_users_own_is_left_alone(job: dict[str, Any], render: Callable[..., Any]) -> None:
    container(job)["resources"] = {"limits": {"memory": "10Gi"}}
    container(job)["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
    pod(job)["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "3Gi"}}]
    (_, rendered, *_), _ = render(job)
    spec = rendered["spec"]["template"]["spec"]
    assert spec["volumes"] == pod(job)["volumes"]
    assert spec["containers"][0]["resources"]["limits"] == {"memory": "10Gi"}


def test_a_variable_of_the_users_own_takes_the_place_of_ours(job: dict[str, Any], render: Callable[..., Any]) -> None:
    container(job)["env"] = [{"name": "PET_RDZV_ID", "value": "mine"}, {"name": "DATA", "value": "$(POD_NAME)"}]
    (_, rendered, *_), _ = render(job)
    env = rendered["spec"]["template"]["spec"]["containers"][0]["env"]
    assert [one["value"] for one in env if one["name"] == "PET_RDZV_ID"] == ["mine"]
    assert env[0]["name"] == "POD_NAME", "before the variables that refer to it"
    assert env[-1]["name"] == "DATA"


@pytest.mark.parametrize(
    ("command", "args", "launch"),
    [
        ([], ["t.py"], Launch(("elastic", "run"), ("t.py",))),
        (["/opt/bin/elastic", "run", "--tee=3"], ["t.py"], Launch(("elastic", "run"), ("--tee=3", "t.py"))),
        (["torchrun", "--tee=3"], ["t.py"], Launch(("elastic", "run"), ("--tee=3", "t.py"))),
        (["python3", "-m", "torchelastic.distributed.launch"], ["t.py"], Launch(("elastic", "run"), ("t.py",))),
        (
            ["python", "-m", "torch.distributed.launch"],
            ["t.py"],
            Launch(("elastic", "run"), ("--pass_local_rank", "t.py")),
        ),
        (["sh", "-c"], ["torchrun t.py"], Launch(("sh", "-c"), ("torchrun t.py",), wrapped=True)),
    ],
)
def test_a_known_launcher_becomes_elastic_run(command: list[str], args: list[str], launch: Launch) -> None:
    assert find_launch({"command": command, "args": args}) == launch


def test_a_shell_is_kept_and_its_node_drained_before_it_ends(job: dict[str, Any], render: Callable[..., Any]) -> None:
    container(job).update(command=["bash", "-c"], args=["torchrun train.py"])
    (service, rendered, *_), err = render(job)
    found = rendered["spec"]["template"]["spec"]["containers"][0]
    assert found["command"] == ["bash", "-c"]
    assert "elastic drain" in found["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert "the container's command 'bash -c' is kept" in err
    check(service)
    check(rendered)
    _, err = render(job, "--to=trainjob", code=2)
    assert "cannot be a TrainJob's" in err


def test_a_field_without_a_counterpart_costs_a_warning(job: dict[str, Any], render: Callable[..., Any]) -> None:
    job["spec"].update(cleanPodPolicy="All", schedulingPolicy={"minAvailable": 2})
    _, err = render(job)
    assert "spec.cleanPodPolicy All is left out" in err
    assert "spec.schedulingPolicy is left out" in err


def test_several_jobs_and_standard_input(job: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    other = {**job, "metadata": {"name": "other"}}
    text = yaml.safe_dump_all([job, other])
    command = [sys.executable, "-m", "elastic_core", "render", "-", "--to=jobset"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    names = [document["metadata"]["name"] for document in yaml.safe_load_all(done.stdout)]
    assert names == ["imagenet", "imagenet", "other", "other"]
    assert done.stderr == ""


@pytest.mark.parametrize(
    "make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_bytes(b"a: \xff")]
)
def test_a_file_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], object]
) -> None:
    make(tmp_path / "job.yaml")
    assert run(Elastic(), ["render", str(tmp_path / "job.yaml")]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("endpoint", "backend"), [("etcd:2379", "etcd"), ("https://etcd:2379", "etcd"), ("redis://r:6379/0", "redis")]
)
def test_the_backend_follows_from_the_endpoint(endpoint: str, backend: str) -> None:
    assert backend_of(endpoint) == backend


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("128974848", 128974848), ("129e6", 129_000_000), ("123Mi", 123 << 20), ("1.5Gi", 3 << 29), ("500m", 1)],
)
def test_amounts_of_memory(text: str, size: int) -> None:
    assert parse_bytes(text) == size
    assert parse_bytes(format_bytes(size)) == size


@pytest.mark.parametrize("text", ["", "Gi", "1GiB", "-1", "1 Gi", "1K", "ten"])
def test_other_texts_are_no_amounts(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}$"):
        parse_bytes(text)


def test_help_reads_no_yaml() -> None:
    script = "import sys; from elastic_core.cli.main import main; main(); print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", script, "render", "--help"]
    asked = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    assert "--snapshot_memory" in asked.stdout
    assert "yaml" not in asked.stderr.split()


NO_TEXTS = [
    "1e-4",
    "3E5",
    "1.5e3",
    ".5e3",
    "1e3",
    "12e03",
    "1e+3",
    "-1e-5",
    "1E-05",
    "5e-5",
    "+.5",
    "y",
    "Y",
    "n",
    "N",
    "0o17",
    "0O17",
    "yes",
    "No",
    "on",
    "OFF",
    "true",
    "False",
    "null",
    "Null",
    "NULL",
    "~",
    "0",
    "007",
    "0x1F",
    "0b11",
    "1_000",
    "1.0",
    "-0",
    "+1",
    ".inf",
    "-.INF",
    ".nan",
    "12:30:45",
    "190:20:30",
    "2001-01-01",
    "2001-01-01T00:00:00Z",
    "=",
    "<<",
    "-",
    "--",
    "---",
    "...",
    "?",
    ":",
    ",",
    "[",
    "]",
    "{",
    "}",
    "#",
    "&",
    "*",
    "!",
    "|",
    ">",
    "%",
    "@",
    "`",
    "'",
    '"',
    "\\",
    "''",
    "a:b",
    "a#b",
    "-1",
    "-x",
    "--lr",
    "--lr=1e-4",
    "0.1.2",
    "1.2e",
    "@a",
    "100%",
    "$(POD_NAME)",
    "/data",
    "./a.py",
]
"""Texts that some reader of YAML takes for another type, and some that none does."""
ODD_TEXTS = [
    "",
    " ",
    "a ",
    " a",
    "a: b",
    "a #b",
    "- a",
    "a\nb",
    "\ta",
    "\u00e9",
    "\u2028",
    "\x1b[2J",
    "\ufeff",
    "a\r\nb",
    "x" * 300,
]
PLAIN_FOR_ALL = re.compile(r"[-./]{0,2}[A-Za-z_$][\w./:=()$-]*")


def test_no_reader_of_yaml_takes_a_text_for_another_type(job: dict[str, Any], render: Callable[..., Any]) -> None:
    """Kubectl and PyYAML differ: kubectl decodes each of these as it is if all but plain words are quoted."""
    texts = [*NO_TEXTS, *ODD_TEXTS]
    container(job)["args"] = ["train.py", *texts]
    container(job)["env"] = [{"name": f"A{at}", "value": text} for at, text in enumerate(texts)]
    manifests, _ = render(job)
    found = manifests[1]["spec"]["template"]["spec"]["containers"][0]
    assert found["args"][1:] == texts
    assert [one["value"] for one in found["env"][-len(texts) :]] == texts
    node = yaml.compose(write([texts]))
    assert isinstance(node, yaml.SequenceNode)
    for text, scalar in zip(texts, node.value, strict=True):
        plain = scalar.style is None
        assert not plain or (PLAIN_FOR_ALL.fullmatch(text) and text.lower().strip("-.") not in OTHER_WORDS), text
    assert sum(scalar.style is None for scalar in node.value) > 5, "plain words stay as they are"


@pytest.mark.parametrize("target", ["job", "jobset", "trainjob"])
def test_pods_may_be_evicted_down_to_the_minimum(job: dict[str, Any], render: Callable[..., Any], target: str) -> None:
    """A budget that spares no pod would block every drain of its machine, so a job of fixed size has none."""
    job["metadata"]["labels"] = {"team": "vision"}
    (*others, budget), _ = render(job, f"--to={target}")
    assert budget["kind"] == "PodDisruptionBudget"
    assert budget["metadata"] == job["metadata"]
    assert budget["spec"]["minAvailable"] == job["spec"]["minReplicas"] == 1
    ((label, name),) = budget["spec"]["selector"]["matchLabels"].items()
    assert name == job["metadata"]["name"]
    assert f"metadata.labels['{label}']" in str(others), "PET_RDZV_ID has the name from the same label"
    job["spec"]["minReplicas"] = job["spec"]["replicaSpecs"]["Worker"]["replicas"]
    assert all(one["kind"] != "PodDisruptionBudget" for one in render(job, f"--to={target}")[0])


OTHER_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "inf", "nan"}


def test_lists_are_taken_apart_and_other_objects_are_passed_on(job: dict[str, Any], render: Callable[..., Any]) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    listed, _ = render({"apiVersion": "v1", "kind": "List", "items": [job]})
    assert [one["kind"] for one in listed] == ["Service", "Job", "PodDisruptionBudget"]
    beside, _ = render(yaml.safe_dump_all([secret, job]))
    assert beside == [secret, *listed]


@pytest.mark.parametrize(
    ("change", "warned"),
    [
        (
            lambda j: container(j).update(args=["--rdzv_id=z", "--nnodes", "4", "a.py"]),
            "the args have --nnodes, --rdzv_id",
        ),
        (lambda j: pod(j)["containers"].append({"name": "logs", "image": "l"}), "the container logs runs beside"),
        (lambda j: pod(j).update(hostNetwork=True), "dnsPolicy: ClusterFirstWithHostNet"),
    ],
)
def test_a_surprising_conversion_costs_a_warning(
    job: dict[str, Any], render: Callable[..., Any], change: Change, warned: str
) -> None:
    assert warned not in render(job)[1]
    container(job)["name"] = "elasticjob-worker"
    change(job)
    assert warned in render(job)[1]


def test_a_python_with_flags_is_known_as_a_launcher(job: dict[str, Any], render: Callable[..., Any]) -> None:
    container(job).update(command=["python", "-u", "-m", "torch.distributed.run"], args=["train.py"])
    manifests, _ = render(job)
    found = manifests[1]["spec"]["template"]["spec"]["containers"][0]
    assert (found["command"], found["args"]) == (["elastic", "run"], ["train.py"])
