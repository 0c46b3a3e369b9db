"""``elastic drain`` and ``elastic release``: requests about a host to the agents of a job, through its store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from elastic_core.cli.option import FlagCommand
from elastic_core.cli.options import FLAGS, Flags
from elastic_core.cli.run import hints_with_sources, meeting_place, plugins_named
from elastic_core.config.parse import NodeRange
from elastic_core.config.run import DEFAULT_ID
from elastic_core.errors import UsageError

if TYPE_CHECKING:
    from elastic_core.rendezvous.backend import RendezvousBackend

TAKEN = ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "plugin")  # the flags that name the job
SEVERAL = NodeRange(1, 2)


class RequestCommand(FlagCommand):
    """A command that asks the nodes of a job for something about a host; flags of ``elastic run`` name the job."""

    def __init__(self, name: str, callback: Callable[..., int], text: str, epilog: str) -> None:
        super().__init__(
            name,
            callback=callback,
            params=[click.Argument(["host"]), *(flag for flag in FLAGS if flag.name in TAKEN)],
            help=text,
            epilog=epilog,
        )


def _drain(*, host: str, **given: Any) -> int:
    """Ask the agents of ``host`` to leave as on SIGTERM, wait until they have answered, and return the exit code."""
    from elastic_core.session import drain_request  # not for --help

    count = _request(drain_request.ask, host, given)
    click.echo(f"{count} agent{'s' if count > 1 else ''} on {host} leave{'' if count > 1 else 's'}.")
    return 0


def _release(*, host: str, **given: Any) -> int:
    """Confirm that ``host`` is gone (rule S4), wait until the job has accepted it, and return the exit code."""
    from elastic_core.session import drain_request

    count = _request(drain_request.release, host, given)
    click.echo(f"The job goes on without the {count} agent{'s' if count > 1 else ''} that {host} had.")
    return 0


def _request(request: Callable[[RendezvousBackend, str, str], int], host: str, given: Mapping[str, Any]) -> int:
    """Return the result of ``request``, called with the store that the flags name, the host and the job's id.

    Raises:
        UsageError: The flags name no job's store.
        PluginError: The backend's plugin cannot be loaded.
        RendezvousConnectionError: The store cannot be reached.
    """
    from elastic_core.config.rdzv_conf import parse
    from elastic_core.plugins import manager  # none of this for --help
    from elastic_core.rendezvous import job_token
    from elastic_core.rendezvous.backend import RendezvousBackend
    from elastic_core.rendezvous.handler import RendezvousParameters

    flags = Flags(nnodes=SEVERAL, **given)
    with hints_with_sources():
        backend, endpoint = meeting_place(flags)
        loaded = manager.load_backend(backend, named=plugins_named(flags, os.environ))
        options = loaded.rendezvous_options()
        if options.handler or options.single_node:
            why = "is a rendezvous handler of others" if options.handler else "serves one node"
            raise UsageError(
                f"The {backend} backend {why}, so its nodes cannot be asked to leave.",
                hint="Name the job's store: --rdzv_backend, --rdzv_endpoint and --rdzv_id. Or send the agent SIGTERM.",
            )
        conf = parse(flags.rdzv_conf, backend=backend, options=options)
    token, job = job_token.read_token(os.environ, conf.token_file), flags.rdzv_id or DEFAULT_ID
    store = loaded.make_rendezvous(RendezvousParameters(backend, endpoint, job, 1, 2, token=token, config=conf.backend))
    assert isinstance(store, RendezvousBackend)
    with closing(store):
        return request(store, host, job)


drain = RequestCommand(
    "drain",
    _drain,
    "Have all agents of HOST leave the job that these flags of `elastic run` name, as if they had got "
    "SIGTERM.\n\nWorkers that call should_checkpoint() then stop together, and no step is lost; others get "
    "SIGTERM. The job goes on without HOST, if --nnodes allows it. The host of the job's own store (c10d) "
    "is refused while there are others.",
    "HOST is the host's name, as agents print it. It takes write access to the job's store. The command ends as soon "
    "as the agents have answered that they leave.",
)
release = RequestCommand(
    "release",
    _release,
    "Say that HOST is gone for good, with all processes of the job that these flags of `elastic run` name.\n\n"
    "A job that has lost all nodes of a round waits until their workers have stopped themselves, ten minutes "
    "(--rdzv_conf fence_after), since they may still be training. Where you know that they are not, because the "
    "machine is off or the pod is deleted, this ends the wait. If you are wrong, two rounds train at once.",
    "HOST is the host's name, as agents print it. Refused while the heartbeats of its agents go on. The command ends "
    "as soon as the job has accepted it, for which an agent of the job must run.",
)
