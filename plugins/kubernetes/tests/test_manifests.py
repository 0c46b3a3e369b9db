"""The manifests of ``deploy/kubernetes/`` and those that are rendered are valid, and consistent in themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from manifest_schemas import DATA, ROOT, check

from elastic_core.exit_codes import ExitCode
from elastic_kubernetes.command import TARGETS
from elastic_kubernetes.documents import write
from elastic_kubernetes.elastic_job import ElasticJob, read_documents
from elastic_kubernetes.manifests import AGENT_SECONDS, REPLACEMENTS, TARGETS as RENDERED, PodOptions

DEPLOY = ROOT / "deploy" / "kubernetes"
FILES = sorted(set(DEPLOY.glob("*.yaml")) - {DEPLOY / "kustomization.yaml"})
GI = 1 << 30
OPTIONS = PodOptions(backend="etcd", shared_memory=8 * GI, snapshots=24 * GI)
ENDPOINT = "etcd-service:2379"


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def elastic_job(path: Path) -> ElasticJob:
    (job,) = read_documents(path.read_text(encoding="utf-8"), path.name, ENDPOINT if path.parent == DATA else None)
    assert isinstance(job, ElasticJob)
    return job


def pod_specs(manifest: Any) -> list[dict[str, Any]]:
    """Every pod's spec within a manifest."""
    if isinstance(manifest, list):
        return [spec for member in manifest for spec in pod_specs(member)]
    if not isinstance(manifest, dict):
        return []
    if isinstance(manifest.get("containers"), list):
        return [manifest]
    return [spec for member in manifest.values() for spec in pod_specs(member)]


def policies(manifest: Any) -> list[dict[str, Any]]:
    """Every spec of a Job within a manifest."""
    if isinstance(manifest, list):
        return [spec for member in manifest for spec in policies(member)]
    if not isinstance(manifest, dict):
        return []
    own = [manifest] if "podFailurePolicy" in manifest else []
    return [*own, *(spec for member in manifest.values() for spec in policies(member))]


EVERY_MANIFEST = [
    *(pytest.param(document, id=f"{path.stem}-{document['kind']}") for path in FILES for document in documents(path)),
    *(
        pytest.param(document, id=f"rendered-{path.stem}-{target}-{document['kind']}")
        for path in (DEPLOY / "elasticjob.yaml", DATA / "imagenet.yaml")
        for target in TARGETS
        for document in RENDERED[target](elastic_job(path), OPTIONS)
    ),
]


@pytest.mark.parametrize("manifest", EVERY_MANIFEST)
def test_a_manifest_is_valid_by_its_published_schema(manifest: dict[str, Any]) -> None:
    check(manifest)


def test_the_check_is_strict() -> None:
    job, jobset = documents(DEPLOY / "job.yaml")[1], documents(DEPLOY / "jobset.yaml")[0]
    job["spec"]["template"]["spec"]["containers"][0]["envs"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        check(job)
    jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurPolicy"] = {}
    with pytest.raises(jsonschema.ValidationError):
        check(jobset)


@pytest.mark.parametrize("target", ["job", "jobset"])
def test_the_files_are_what_is_rendered_with_comments(target: str) -> None:
    rendered = RENDERED[target](elastic_job(DEPLOY / "elasticjob.yaml"), OPTIONS)
    assert documents(DEPLOY / f"{target}.yaml") == rendered
    assert list(yaml.safe_load_all(write(rendered))) == rendered


@pytest.mark.parametrize("manifest", [param for param in EVERY_MANIFEST if policies(param.values[0])])
def test_every_exit_code_has_its_consequence(manifest: dict[str, Any]) -> None:
    """Those of the table in docs/reference/exit_codes.md; codes that no rule names count, and the pod is replaced."""
    (spec,) = policies(manifest)
    rules = spec["podFailurePolicy"]["rules"]
    (container,) = pod_specs(manifest)[0]["containers"]
    assert rules[0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}], "before any code"
    actions: dict[int, str] = {}
    for rule in rules[1:]:
        assert rule["onExitCodes"]["containerName"] == container["name"]
        for code in rule["onExitCodes"]["values"]:
            actions.setdefault(code, rule["action"])
    codes = ExitCode
    assert actions == {
        143: "Ignore",
        codes.JOB_FAILED: "FailJob",
        codes.USAGE: "FailJob",
        codes.TOO_FEW_NODES: "FailJob",
        codes.REQUEUE: "FailJob",
    }
    assert spec["backoffLimitPerIndex"] == REPLACEMENTS, "a Job fails with the first index that is given up"


@pytest.mark.parametrize("manifest", [param for param in EVERY_MANIFEST if policies(param.values[0])])
def test_a_planned_stop_ends_before_the_kubelet_kills(manifest: dict[str, Any]) -> None:
    for spec in pod_specs(manifest):
        (container,) = spec["containers"]
        values = {variable["name"]: variable.get("value") for variable in container["env"]}
        stop, end = float(values["PET_PREEMPTION_GRACE"]), float(values["PET_SHUTDOWN_TIMEOUT"])
        assert stop > 0
        assert stop + end + AGENT_SECONDS == spec["terminationGracePeriodSeconds"]
        assert spec["restartPolicy"] == "Never", "podFailurePolicy needs it"
        names = [variable["name"] for variable in container["env"]]
        assert len(set(names)) == len(names)


def test_kustomize_finds_all_places_of_a_name() -> None:
    """A prefix of an overlay then changes all of them: no copy has a name of the original."""
    manifests = {document["kind"]: document for document in documents(DEPLOY / "job.yaml")}
    (base,) = documents(DEPLOY / "kustomization.yaml")
    assert base["resources"] == ["job.yaml"]
    (names,) = documents(DEPLOY / base["configurations"][0])
    places = 0
    for reference in names["nameReference"]:
        name = manifests[reference["kind"]]["metadata"]["name"]
        for field in reference["fieldSpecs"]:
            *path, last = re.split(r"(?<!\\)/", field["path"])
            found = manifests[field["kind"]]
            for key in path:
                found = found[key]
            assert found.pop(last.replace("\\/", "/")) == name
            places += 1
    assert places == 3
    for manifest in manifests.values():
        assert manifest["metadata"].pop("name") == "train"
    assert "train" not in re.findall(
        r"[\w.-]+", re.sub(r"registry\.example/train:1|/workspace/\S+", "", str(manifests))
    )


def test_an_elastic_job_of_the_documents_is_valid_itself() -> None:
    (document,) = documents(DATA / "imagenet.yaml")
    check(document)
