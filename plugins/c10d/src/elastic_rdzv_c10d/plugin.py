"""The hooks that core calls: what the ``c10d`` backend takes, and how its first connection is made."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core import hookimpl
from elastic_core.errors import UsageError
from elastic_core.rendezvous import (
    FORM,
    TOKEN_VARIABLE,
    HostPort,
    RendezvousOptions,
    RendezvousParameters,
    StoreWarning,
    boolean,
    timeouts,
)
from elastic_rdzv_c10d.endpoint import DEFAULT_PORT, Address, Patience, Search, find_site, resolve

if TYPE_CHECKING:
    from elastic_rdzv_c10d.backend import C10dBackend


@dataclass(frozen=True, slots=True)
class Options:
    """The backend's own ``--rdzv_conf`` keys. Durations are in seconds."""

    is_host: bool | None = None
    read_timeout: float = 60.0
    connect_timeout: float = 60.0

    @classmethod
    def read(cls, config: Mapping[str, str]) -> Options:
        """Read them; raise UsageError if a value is no boolean, or no positive number of seconds."""
        return cls(boolean("is_host", config["is_host"]) if "is_host" in config else None, **timeouts(config))


@hookimpl
def elastic_rendezvous_options() -> RendezvousOptions:
    """Return the endpoint, and what ``--rdzv_conf`` may say."""
    return RendezvousOptions(
        endpoint=FORM,
        endpoint_required=True,
        embedded=True,
        conf={
            "is_host": "true: this agent hosts the store; false: it does not; by default the first agent on the host "
            f"that has the endpoint's address does (port {DEFAULT_PORT} unless given)",
            "read_timeout": f"seconds that one answer of the store may take [{Options().read_timeout:g}]",
            "connect_timeout": f"seconds to wait for the store's host to come up [{Options().connect_timeout:g}]",
        },
    )


@hookimpl
def elastic_make_rendezvous(params: RendezvousParameters) -> C10dBackend:
    """Host the store if it belongs here, and connect to it.

    Raises:
        UsageError: The endpoint or an option is wrong, this host cannot tell whether the address is its own, or torch
            cannot be imported.
        RendezvousConnectionError: No server listens there, no route leads there, or the store was to be here and its
            port is taken.
    """
    return connect(params, Options.read(params.config))


def connect(params: RendezvousParameters, options: Options, *, serves_workers: bool = False) -> C10dBackend:
    """Connect with these options; ``serves_workers`` says whether the job's workers use this store, too."""
    endpoint = HostPort.parse(params.endpoint, DEFAULT_PORT)
    patience = Patience(options.connect_timeout)
    site = find_site(endpoint, resolve(endpoint, patience), options.is_host, params.local_addr)
    with ExitStack() as undo:
        search = Search(endpoint, site, patience)
        if site.listener is not None:
            undo.callback(site.listener.close)  # others knock there from here on
        else:
            search.look()
        try:
            from elastic_rdzv_c10d.backend import C10dBackend  # imports torch
        except (ImportError, OSError) as exc:  # OSError: a library that torch loads is not there
            raise UsageError(
                f"The {params.backend} backend needs torch, which cannot be imported: {type(exc).__name__}: {exc}.",
                hint="Install torch for this Python, or take a backend that does without it: redis, etcd, file.",
            ) from exc
        from elastic_rdzv_c10d.client import StoreClient
        from elastic_rdzv_c10d.server import StoreServer, limit_warning

        server = None
        warnings: list[StoreWarning | None] = []
        if site.listener is not None:
            server = StoreServer.start(site.listener)
            undo.callback(server.close)
            warnings.append(limit_warning(params.max_nodes, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            if params.token is None:
                warnings.append(exposure_warning(site.addresses[0]))
        client = StoreClient(search.reach(), options.read_timeout, patience.left(), search.waiting)
        shared = serves_workers and client.names() is not None  # else old rounds' keys could not be deleted
        undo.pop_all()
    made = C10dBackend(client, params.run_id, server=server, serves_workers=shared)
    made.warnings = tuple(filter(None, warnings))
    return made


def exposure_warning(address: Address) -> StoreWarning | None:
    """Return the warning for a store at ``address`` of a job without a token; None if only this host reaches it."""
    if address.is_loopback:
        return None
    return StoreWarning(
        f"The job has no token, and its store listens at {address}: every program that reaches that port can write the "
        "job's decisions, and so run code in its workers.",
        f"Set {TOKEN_VARIABLE} to one secret on all nodes (docs/security.md), or let only them reach the port.",
    )
