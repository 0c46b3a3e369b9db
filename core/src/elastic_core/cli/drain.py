"""``elastic drain``: ask the agents of a host to leave their job, as on SIGTERM but without a deadline."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from elastic_core.cli.option import FlagCommand
from elastic_core.cli.options import FLAGS, Flags
from elastic_core.cli.run import meeting_place, plugins_named, with_sources
from elastic_core.config.parse import NodeRange
from elastic_core.config.run import DEFAULT_ID
from elastic_core.errors import PluginError, UsageError

if TYPE_CHECKING:
    from elastic_core.rendezvous.backend import RendezvousBackend

TAKEN = ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "plugin")  # they name the job
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


def drain(*, host: str, **given: Any) -> int:
    """Ask the agents of ``host`` to leave, wait until they have answered, and return the exit code."""
    from elastic_core.session.drain_request import ask  # not for --help

    count = over_the_store(given, lambda store, job: ask(store, host, job))
    click.echo(f"{count} agent{'s' if count > 1 else ''} on {host} leave{'' if count > 1 else 's'}.")
    return 0


def over_the_store(given: Mapping[str, Any], request: Callable[[RendezvousBackend, str], int]) -> int:
    """Call ``request`` with a connection to the store that the flags name and the job's id; return its result.

    Raises:
        UsageError: The flags name no job's store.
        PluginError: The backend's plugin cannot be loaded.
        RendezvousConnectionError: The store cannot be reached.
    """
    from elastic_core.config.rdzv_conf import parse
    from elastic_core.plugins import manager  # none of this for --help
    from elastic_core.plugins.entry_points import Catalogue
    from elastic_core.rendezvous import job_token
    from elastic_core.rendezvous.backend import RendezvousBackend
    from elastic_core.rendezvous.handler import RendezvousParameters

    flags = Flags(nnodes=SEVERAL, **given)
    try:
        catalogue, (backend, endpoint) = Catalogue.read(), meeting_place(flags)
        loaded = manager.load_backend(backend, catalogue, plugins_named(flags, os.environ))
        options = loaded.rendezvous_options()
        if options.handler or options.single_node:
            why = "is a rendezvous handler of others" if options.handler else "serves one node"
            raise UsageError(
                f"The {backend} backend {why}, so its nodes cannot be asked to leave.",
                hint="Name the job's store: --rdzv_backend, --rdzv_endpoint and --rdzv_id. Or send the agent SIGTERM.",
            )
        conf = parse(flags.rdzv_conf, backend=backend, options=options)
    except (UsageError, PluginError) as exc:
        exc.hint = with_sources(exc, click.get_current_context(silent=True))
        raise
    params = RendezvousParameters(
        backend=backend,
        endpoint=endpoint,
        run_id=flags.rdzv_id or DEFAULT_ID,
        min_nodes=1,
        max_nodes=2,
        local_addr=None,
        node_rank=None,
        token=job_token.read_token(os.environ, conf.token_file),
        config=conf.backend,
    )
    store = loaded.make_rendezvous(params)
    assert isinstance(store, RendezvousBackend)
    try:
        return request(store, params.run_id)
    finally:
        store.close()


command = RequestCommand(
    "drain",
    drain,
    "Have all agents of HOST leave the job that these flags of `elastic run` name, as if they had got "
    "SIGTERM.\n\nWorkers that call should_checkpoint() then stop together, and no step is lost; others get "
    "SIGTERM. The job goes on without HOST, if --nnodes allows it. The host of the job's own store (c10d) "
    "is refused while there are others.",
    "HOST is the host's name, as agents print it. It takes write access to the job's store. The command ends as soon "
    "as the agents have answered that they leave.",
)
