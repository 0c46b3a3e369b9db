"""``elastic render``: prints the manifests that stand for an ElasticJob."""

from __future__ import annotations

from pathlib import Path

import click

from elastic_core.cli import FlagCommand, warn
from elastic_core.errors import UsageError

TARGETS = ("job", "jobset", "trainjob")
MOST_BYTES = 10_000_000  # of a file; a manifest has thousands


def render(
    *,
    file: str,
    to: str,
    rdzv_backend: str | None,
    rdzv_endpoint: str | None,
    image: str | None,
    shm_size: str,
    snapshot_memory: str,
) -> int:
    """Print the manifests; return the exit code."""
    from elastic_kubernetes import documents, manifests  # none of this for --help
    from elastic_kubernetes.elastic_job import read_documents

    source = "standard input" if file == "-" else file
    rendered: list[object] = []
    for job in read_documents(_text(file), source, rdzv_endpoint):
        if isinstance(job, dict):
            rendered.append(job)
            continue
        options = manifests.PodOptions(
            backend=rdzv_backend or backend_of(job.endpoint),
            image=image,
            shared_memory=_size("shm_size", shm_size, least=1),
            snapshots=_size("snapshot_memory", snapshot_memory, least=0),
        )
        rendered += manifests.TARGETS[to](job, options)
        for warning in manifests.warnings_for(job, options, to):
            warn(f"{source}, {job.name}: {warning}")
    click.echo(documents.write(rendered), nl=False)
    return 0


def backend_of(endpoint: str) -> str:
    """Return the backend that an endpoint names: etcd, as for torchelastic's controller, unless it is a Redis's URL."""
    scheme, colon, _ = endpoint.partition("://")
    return "redis" if colon and scheme.startswith(("redis", "rediss", "valkey", "sentinel")) else "etcd"


def _text(file: str) -> str:
    try:
        with open(0 if file == "-" else Path(file), "rb", closefd=file != "-") as opened:
            content = opened.read(MOST_BYTES + 1)
    except OSError as exc:
        raise UsageError(f"{file!r} cannot be read: {exc.strerror}.") from exc
    if len(content) > MOST_BYTES:
        raise UsageError(f"{file!r} has more than {MOST_BYTES:,} bytes.", hint="It takes a file with an ElasticJob.")
    try:
        return content.decode()
    except UnicodeDecodeError as exc:
        raise UsageError(f"{file!r} is not text in UTF-8: byte {exc.start} is {content[exc.start]:#04x}.") from exc


def _size(name: str, text: str, *, least: int) -> int:
    from elastic_kubernetes.manifests import parse_bytes

    try:
        size = parse_bytes(text)
    except ValueError:
        size = -1
    if size < least:
        raise UsageError(f"--{name} {text!r} is not an amount of memory.", hint="Write it as 512Mi or 16Gi.")
    return size


command = FlagCommand(
    "render",
    callback=render,
    params=[
        click.Argument(["file"], metavar="ELASTICJOB.YAML"),
        click.Option(
            ["--to"],
            type=click.Choice(TARGETS),
            default="job",
            show_default=True,
            help="An Indexed Job with its Service, a JobSet, or a TrainJob of Kubeflow Trainer with its runtime.",
        ),
        click.Option(
            ["--rdzv_backend"],
            metavar="NAME",
            help="The store: etcd, or redis for an endpoint that begins with redis://, by default.",
        ),
        click.Option(["--rdzv_endpoint"], metavar="ENDPOINT", help="In place of spec.rdzvEndpoint."),
        click.Option(["--image"], metavar="IMAGE", help="In place of the image of the container that trains."),
        click.Option(
            ["--shm_size"],
            metavar="SIZE",
            default="1Gi",
            show_default=True,
            help="The size of /dev/shm, for data loaders and NCCL; it counts as memory of the container.",
        ),
        click.Option(
            ["--snapshot_memory"],
            metavar="SIZE",
            default="0",
            show_default=True,
            help="The memory for the snapshots that TrainState keeps on a node: twice the state of each worker.",
        ),
    ],
    help="Print the Kubernetes manifests for the ElasticJobs in a file; - is standard input.\n\nThe command sends "
    "nothing to a cluster: `elastic render job.yaml | kubectl apply -f -` does.",
    epilog="docs/kubernetes.md says what each manifest does. Flags may be written with - or _.",
)
