"""An ElasticJob, checked field by field: the custom resource of torchelastic's controller for Kubernetes.

Its fields are those of the CRD ``elasticjobs.elastic.pytorch.org``, version ``v1alpha1``. Each is read with its path,
so that an error names the field, its value and what to do.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from elastic_core.errors import UsageError, did_you_mean
from elastic_kubernetes import documents

API_VERSION = "elastic.pytorch.org/v1alpha1"
KIND = "ElasticJob"
WORKER = "Worker"  # the only kind of replica that the controller starts; each is a node
CONTAINER = "elasticjob-worker"  # the container's name where a pod has several
SPEC = (
    *("rdzvEndpoint", "minReplicas", "maxReplicas", "replicaSpecs", "backoffLimit", "activeDeadlineSeconds"),
    *("ttlSecondsAfterFinished", "cleanPodPolicy", "schedulingPolicy"),
)
REPLICA = ("replicas", "template", "restartPolicy")
RESTART_POLICIES = ("Always", "OnFailure", "Never", "ExitCode")
CLEAN_POD_POLICIES = ("Running", "All", "None", "")

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAME_LENGTH = 40  # leaves room, in 63 characters, for what the controllers append: ``-node-0-1234-x7k2p``
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::[0-9]{1,5})?"
_ENDPOINT = re.compile(rf"(?:[a-z][a-z0-9+-]*://)?(?:[^@/\s<>]*@)?{_HOST}(?:,(?:[a-z]+://)?{_HOST})*(?:/[^\s<>]*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticJob:
    """The contents of an ElasticJob."""

    name: str
    namespace: str | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    endpoint: str
    min_nodes: int
    nodes: int  # with how many the job starts
    max_nodes: int
    template: Mapping[str, Any]  # the pod's, as written, without ``apiVersion`` and ``kind``
    container: int  # the index of the container that launches
    backoff_limit: int | None
    deadline_seconds: int | None
    ttl_seconds: int | None
    warnings: tuple[str, ...] = ()  # fields that have no counterpart


def read_documents(text: str, source: str, endpoint: str | None = None) -> list[ElasticJob | dict[str, object]]:
    """Return the ElasticJobs in a text of YAML, and the other objects beside them as they are. Lists are taken apart.

    Raises:
        UsageError: It is not YAML, has no ElasticJob, or a field is wrong.
    """
    found = [item for document in documents.read(text, source) for item in _items(document)]
    if not found:
        raise UsageError(f"{source} is empty.", hint="It takes a file with an ElasticJob.")
    is_job = [isinstance(document, dict) and document.get("kind") == KIND for document in found]
    several = len(found) > 1
    return [
        parse_elastic_job(document, f"{source}, document {number}" if several else source, endpoint=endpoint)
        if mine or not (any(is_job) and isinstance(document, dict) and document.get("kind"))
        else document
        for number, (mine, document) in enumerate(zip(is_job, found, strict=True), 1)
    ]


def _items(document: object) -> list[object]:
    """Return the objects of a List, as ``kubectl get -o yaml`` prints them; of any other document itself."""
    if isinstance(document, dict) and document.get("kind") == "List" and isinstance(document.get("items"), list):
        return list(document["items"])
    return [document]


def parse_elastic_job(document: object, source: str, *, endpoint: str | None = None) -> ElasticJob:
    """Return what a document says; ``endpoint``, where it is given, replaces ``spec.rdzvEndpoint``.

    Raises:
        UsageError: A field is wrong; names the field, its value, and what to do.
    """
    root = Field(document, "", source)
    if not isinstance(document, dict):
        raise Field(document, "the document", source).wrong("is not an ElasticJob.")
    kind, version = document.get("kind"), document.get("apiVersion")
    if kind != KIND or version != API_VERSION:
        raise Field(kind, "kind", source).wrong(
            f"of apiVersion {version!r} is not rendered.",
            hint=f"It takes ElasticJobs: kind {KIND}, apiVersion {API_VERSION}.",
        )
    root.only(("apiVersion", "kind", "metadata", "spec", "status"))
    metadata, spec = root.need("metadata"), root.need("spec")
    spec.only(SPEC)
    replicas = spec.need("replicaSpecs", f"It has a field {WORKER}, with `replicas` and `template`.")
    replicas.only((WORKER,))
    worker = replicas.need(WORKER)
    worker.only(REPLICA)
    nodes, least, most = _sizes(spec, worker)
    template = worker.need("template", "It is the pod's: `spec` with `containers`.")
    _one_of(worker, "restartPolicy", RESTART_POLICIES, default="ExitCode")  # the agent restarts the workers itself
    return ElasticJob(
        name=_name(metadata),
        namespace=None if (space := metadata.get("namespace")) is None else _label(space),
        labels=_texts(metadata.get("labels")),
        annotations=_texts(metadata.get("annotations")),
        endpoint=_endpoint(
            spec.need("rdzvEndpoint", "It is the etcd's or the Redis's address, HOST:PORT.")
            if endpoint is None
            else Field(endpoint, "--rdzv_endpoint", source)
        ),
        min_nodes=least,
        nodes=nodes,
        max_nodes=most,
        template=_template(template),
        container=_container(template),
        backoff_limit=_number(spec, "backoffLimit", least=0),
        deadline_seconds=_number(spec, "activeDeadlineSeconds", least=1),
        ttl_seconds=_number(spec, "ttlSecondsAfterFinished", least=0),
        warnings=tuple(_warnings(spec)),
    )


def _sizes(spec: Field, worker: Field) -> tuple[int, int, int]:
    """Return how many nodes the job starts with, and the least and most that it takes."""
    where = worker.get("replicas") or Field(1, f"{worker.path}.replicas", worker.source)
    nodes = where.number(least=1)
    least, most = spec.get("minReplicas"), spec.get("maxReplicas")
    least_nodes = nodes if least is None else least.number(least=1)
    most_nodes = nodes if most is None else most.number(least=1)
    if least is not None and least_nodes > most_nodes:
        named = "spec.maxReplicas" if most is not None else where.path
        raise least.wrong(f"is greater than {named}, {most_nodes}.", hint="The job could never start.")
    if nodes < least_nodes:
        raise where.wrong(
            f"is less than spec.minReplicas, {least_nodes}.",
            hint="The job starts with `replicas` nodes: give at least the minimum.",
        )
    if nodes > most_nodes:
        raise where.wrong(
            f"is greater than spec.maxReplicas, {most_nodes}.", hint="The nodes beyond the maximum would only wait."
        )
    return nodes, least_nodes, most_nodes


def _name(metadata: Field) -> str:
    if metadata.get("name") is None and metadata.get("generateName") is not None:
        raise metadata.missing("name", "The nodes of a job meet under its name: generateName does not do.")
    name = metadata.need("name")
    text = name.text()
    if not _NAME.fullmatch(text):
        raise name.wrong(
            "is not a name for a job and its service.",
            hint="Use small letters, digits and dashes; begin with a letter, and end with a letter or a digit.",
        )
    if len(text) > _NAME_LENGTH:
        raise name.wrong(
            f"has {len(text)} characters; {_NAME_LENGTH} are allowed.",
            hint="The names of its pods are longer by an index and a suffix, and 63 characters are the limit of those.",
        )
    return text


def _label(value: Field) -> str:
    text = value.text()
    if len(text) > 63 or not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", text):
        raise value.wrong("is not a namespace.", hint="Use small letters, digits and dashes, at most 63.")
    return text


def _endpoint(value: Field) -> str:
    text = value.text().strip()
    if "<" in text or ">" in text:
        raise value.wrong(
            "is a placeholder.",
            hint="Put the store's address there, such as etcd:2379, or name it with --rdzv_endpoint.",
        )
    if not _ENDPOINT.fullmatch(text):
        raise value.wrong(
            "is not an address.", hint="Write HOST:PORT, several with commas between them, or redis://HOST:PORT."
        )
    return text


def _template(template: Field) -> dict[str, Any]:
    """Return ``template`` without ``apiVersion`` and ``kind``, which samples have and pods of a Job do not."""
    template.only(("apiVersion", "kind", "metadata", "spec"))
    found = {name: copy.deepcopy(value) for name, value in template.mapping().items() if name in ("metadata", "spec")}
    if (metadata := template.get("metadata")) is not None:
        _texts(metadata.get("labels"))
        _texts(metadata.get("annotations"))
    spec = template.need("spec")
    if (seconds := spec.get("terminationGracePeriodSeconds")) is not None:
        seconds.number(least=0)
    for name in ("volumes", "initContainers"):
        for member in spec.members(name):
            member.need("name").text()
    return found


def _container(template: Field) -> int:
    """Return the index of the container that launches, whose fields are checked as far as they are read."""
    spec = template.need("spec")
    containers = list(spec.need("containers").items())
    names = [container.need("name").text() for container in containers]
    if not containers:
        raise spec.need("containers").wrong("has no container.")
    if len(containers) > 1 and CONTAINER not in names:
        raise spec.need("containers").wrong(
            "has several containers.", hint=f"Name the one that trains {CONTAINER}, as the controller did."
        )
    index = names.index(CONTAINER) if CONTAINER in names else 0
    container = containers[index]
    container.need("image", "It has torch, the script, elastic-core and the distribution of the store.").text()
    for name in ("command", "args"):
        for word in container.members(name):
            if not isinstance(word.value, str):
                raise word.wrong("is not a text.", hint="Put it between quotes: arguments are texts.")
    for name in ("env", "volumeMounts"):
        for member in container.members(name):
            member.need("name").text()
    for mount in container.members("volumeMounts"):
        mount.need("mountPath").text()
    if (lifecycle := container.get("lifecycle")) is not None:
        lifecycle.mapping()
    if (resources := container.get("resources")) is not None:
        for name in ("limits", "requests"):
            if (amounts := resources.get(name)) is not None:
                amounts.mapping()
    return index


def _number(spec: Field, name: str, *, least: int) -> int | None:
    return None if (found := spec.get(name)) is None else found.number(least=least)


def _one_of(mapping: Field, name: str, known: tuple[str, ...], *, default: str) -> str:
    if (found := mapping.get(name)) is None:
        return default
    if found.value not in known:
        raise found.wrong("is not known.", hint=f"It is one of {', '.join(filter(None, known))}.")
    return str(found.value)


def _texts(mapping: Field | None) -> dict[str, str]:
    if mapping is None:
        return {}
    for name in mapping.mapping():
        if (value := mapping.get(name)) is not None and not isinstance(value.value, str):
            raise value.wrong("is not a text.", hint="Put it between quotes.")
    return dict(mapping.mapping())


def _warnings(spec: Field) -> list[str]:
    said = []
    if _one_of(spec, "cleanPodPolicy", CLEAN_POD_POLICIES, default="Running") == "All":
        said.append(
            "spec.cleanPodPolicy All is left out: a finished Job keeps its finished pods, for their logs. Set "
            "spec.ttlSecondsAfterFinished to have them deleted."
        )
    if spec.get("schedulingPolicy") is not None:
        said.append(
            "spec.schedulingPolicy is left out: the job starts with spec.minReplicas nodes, and takes others when they "
            "come. For a scheduler that starts all pods together see docs/kubernetes.md."
        )
    return said


@dataclass(frozen=True, slots=True)
class Field:
    """One value of a document."""

    value: Any
    path: str  # as messages name it, e.g. ``spec.replicaSpecs.Worker.replicas``
    source: str  # the file

    def wrong(self, what: str, hint: str | None = None) -> UsageError:
        """Return the error that the value is wrong; ``what`` follows the path and the value."""
        shown = repr(self.value) if isinstance(self.value, str) else f"{self.value!s:.80}"
        return UsageError(f"{self.source}: {self.path} {shown} {what}", hint=hint)

    def missing(self, name: str, hint: str | None = None) -> UsageError:
        """Return the error that this mapping lacks a field."""
        return UsageError(f"{self.source}: {self._below(name)} is missing.", hint=hint)

    def get(self, name: str) -> Field | None:
        """Return a field of this mapping; None where it is not there or null."""
        mapping = self.mapping()
        return None if mapping.get(name) is None else Field(mapping[name], self._below(name), self.source)

    def need(self, name: str, hint: str | None = None) -> Field:
        """Return a field of this mapping that must be there."""
        found = self.get(name)
        if found is None:
            raise self.missing(name, hint)
        return found

    def mapping(self) -> dict[str, Any]:
        """Return the value, a mapping whose keys are texts."""
        if not isinstance(self.value, dict) or not all(isinstance(key, str) for key in self.value):
            raise self.wrong("is not a mapping of fields.", hint="Write it as `name: value`, one field a line.")
        return self.value

    def members(self, name: str) -> Iterator[Field]:
        """Yield the members of a list in this mapping; none where it is not there."""
        if (several := self.get(name)) is not None:
            yield from several.items()

    def items(self) -> Iterator[Field]:
        """Yield the members of this list."""
        if not isinstance(self.value, list):
            raise self.wrong("is not a list.", hint="Write each member on a line that begins with a dash.")
        for index, member in enumerate(self.value):
            yield Field(member, f"{self.path}[{index}]", self.source)

    def text(self) -> str:
        """Return the value, a text that is not empty."""
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.wrong("is not a text.", hint="Put it between quotes.")
        return self.value

    def number(self, *, least: int) -> int:
        """Return the value, a whole number of at least ``least``."""
        if type(self.value) is not int or self.value < least:
            raise self.wrong(f"is not a whole number of at least {least}.")
        return self.value

    def only(self, known: Collection[str]) -> None:
        """Refuse fields of this mapping that are not among ``known``."""
        for name in self.mapping():
            if name not in known:
                raise UsageError(
                    f"{self.source}: there is no field {self._below(name)}.{did_you_mean(name, known)}",
                    hint=f"The fields here are {', '.join(known)}.",
                )

    def _below(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name
