"""``elastic run``: from flags to one :class:`RunConfig`, or to an error before anything is started."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elastic_core.cli import program, values
from elastic_core.cli.flags import Flags, RunCommand
from elastic_core.conf import parse, scheduler_uid
from elastic_core.config import RunConfig, StreamMap
from elastic_core.errors import UsageError

if TYPE_CHECKING:
    from elastic_core.hookspecs import RendezvousOptions

LOCAL = "local"
OBSERVERS_GET = 5.0
"""Seconds that observers get at the end to finish with what they have been told."""
HOST_AND_PORT = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.%\w]+\])(:\d+)?", re.ASCII)


def run(**flags: Any) -> int:
    """Run the job; return the exit code."""
    from elastic_core import plugins  # not for --help
    from elastic_core.discovery import Catalogue

    catalogue = Catalogue.read()
    config = configure(Flags(**flags), os.environ, lambda backend: plugins.rendezvous_options(backend, catalogue))
    loaded = plugins.load(config, catalogue)
    if config.log_dir is not None:
        make_log_dir(config.log_dir)

    from elastic_core.agent import supervisor

    try:
        return supervisor.run(config, loaded)
    finally:
        for name in loaded.close(OBSERVERS_GET):
            click.echo(f"elastic: the observer {name!r} did not finish within {OBSERVERS_GET:g} s.", err=True)


command = RunCommand(run)


def configure(flags: Flags, environ: Mapping[str, str], options_of: Callable[[str], RendezvousOptions]) -> RunConfig:
    """What the flags ask for, taken together.

    Args:
        flags: The command line's.
        environ: The agent's environment: the scheduler's id of the run and ``ELASTIC_PLUGINS`` are read from it.
        options_of: What a backend takes, by its name; raises PluginError for one that is not installed.

    Raises:
        UsageError: Two of them contradict each other, or the backend does not take what it is given.
    """
    to_run = program.find(flags.script, flags.arguments, module=flags.module, no_python=flags.no_python)
    for name, streams in (("redirects", flags.redirects), ("tee", flags.tee)):
        _check_ranks(name, streams, flags.nproc_per_node)
    backend, endpoint = meeting_place(flags)
    options = options_of(backend)
    _check_reach(flags, backend, endpoint, options)
    conf = parse(flags.rdzv_conf, backend=backend, backend_keys=options.conf)
    return RunConfig(
        program=to_run,
        min_nodes=flags.nnodes.least,
        max_nodes=flags.nnodes.most,
        nproc_per_node=flags.nproc_per_node,
        role=flags.role,
        max_restarts=flags.max_restarts,
        on_node_loss=flags.on_node_loss,
        rdzv_backend=backend,
        rdzv_endpoint=endpoint,
        rdzv_id=flags.rdzv_id or (uuid.uuid4().hex if flags.standalone else "none"),  # both as torchrun's
        rdzv_conf=conf.backend,
        timing=conf.timing,
        run_uid=conf.run_uid or scheduler_uid(environ),
        allow_version_mismatch=flags.allow_version_mismatch,
        local_addr=flags.local_addr,
        shutdown_timeout=flags.shutdown_timeout,
        failure_grace=flags.failure_grace,
        log_dir=Path(flags.log_dir) if flags.log_dir else None,
        redirects=flags.redirects,
        tee=flags.tee,
        plugins=(*values.names(environ.get("ELASTIC_PLUGINS", "")), *flags.plugin),
        no_plugins=flags.no_plugin,
        verbose=flags.verbose,
    )


def meeting_place(flags: Flags) -> tuple[str, str]:
    """The backend and the endpoint that the flags mean.

    Raises:
        UsageError: There is an endpoint, but not one from which the backend could be told.
    """
    if flags.standalone:
        return LOCAL, ""
    if flags.rdzv_backend is not None:
        return flags.rdzv_backend, flags.rdzv_endpoint
    if not flags.rdzv_endpoint:
        return LOCAL, ""
    if HOST_AND_PORT.fullmatch(flags.rdzv_endpoint):
        return "c10d", flags.rdzv_endpoint  # what torchrun's users mean by an endpoint
    raise UsageError(
        f"--rdzv_endpoint {flags.rdzv_endpoint!r} is not of the form HOST[:PORT], so the backend must be named.",
        hint=f"For a shared directory: --rdzv_backend=file --rdzv_endpoint={flags.rdzv_endpoint}",
    )


def make_log_dir(path: Path) -> None:
    """Make the directory for logs, or find that there can be none while nothing has started yet.

    Raises:
        UsageError: It cannot be made, or not be written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"--log_dir {str(path)!r} cannot be made: {exc.strerror}.") from exc
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"--log_dir {str(path)!r} may not be written to.")


def _check_reach(flags: Flags, backend: str, endpoint: str, options: RendezvousOptions) -> None:
    """Whether the nodes can meet at that backend."""
    if options.endpoint_required and not endpoint:
        raise UsageError(
            f"--rdzv_backend {backend!r} needs an endpoint.", hint=f"Add --rdzv_endpoint={options.endpoint}."
        )
    if endpoint and not options.endpoint:
        raise UsageError(f"--rdzv_endpoint {endpoint!r}: the {backend} backend takes no endpoint.")
    if options.single_node and flags.nnodes.most > 1:
        if flags.standalone:
            raise UsageError(
                f"--nnodes {str(flags.nnodes)!r}: with --standalone nobody can join.",
                hint="Did you mean to leave out --standalone?",
            )
        raise UsageError(
            f"--nnodes {str(flags.nnodes)!r}: with the {backend} backend nobody can join.",
            hint="Say where the nodes meet, e.g. --rdzv_endpoint=HOST[:PORT], the host being one of them.",
        )


def _check_ranks(name: str, streams: StreamMap, nproc_per_node: int) -> None:
    for rank in streams.by_rank:
        if rank >= nproc_per_node:
            raise UsageError(
                f"--{name} names local rank {rank}, but with --nproc_per_node={nproc_per_node} the last one is "
                f"{nproc_per_node - 1}."
            )
