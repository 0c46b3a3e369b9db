"""The store of a running job, for commands that look at the job or ask something of it, as ``elastic status``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from elastic_core.cli.option import FlagOption
from elastic_core.cli.settle import FLAGS, Flags, meeting_place, plugins_named
from elastic_core.config.parse import NodeRange
from elastic_core.config.run import DEFAULT_ID
from elastic_core.errors import UsageError, how_to_install
from elastic_core.rendezvous.backend import FoundJob, RendezvousBackend

_NAMES = ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "plugin")
STORE_FLAGS = tuple(FlagOption(flag) for flag in FLAGS if flag.name in _NAMES)  # those that name a job's store
_SEVERAL = NodeRange(1, 2)


class NoStoreError(UsageError):
    """The backend that the flags name has no store in which other processes find a job; ``job`` is its id, if known."""

    def __init__(self, message: str, *, hint: str | None = None, job: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.job = job


@contextmanager
def open_store(given: Mapping[str, Any]) -> Iterator[tuple[RendezvousBackend, str]]:
    """Yield a connection to the store that ``given``, the values of :data:`STORE_FLAGS`, names, and the job's id.

    If they name neither a backend nor an endpoint, the plugins that find jobs are asked.

    Raises:
        NoStoreError: The backend has no such store, or no plugin knows the job.
        UsageError: A flag is wrong.
        PluginError: The backend's plugin cannot be loaded.
        RendezvousConnectionError: The store cannot be reached.
    """
    from elastic_core.config.rdzv_conf import parse_conf
    from elastic_core.plugins import manager  # none of this for --help
    from elastic_core.rendezvous import job_token
    from elastic_core.rendezvous.options import RendezvousParameters

    if not is_store_named(given):
        found = _find(given["rdzv_id"])
        if found.store is not None:
            with closing(found.store):
                yield found.store, found.job
            return
        given = {**given, "rdzv_backend": found.backend, "rdzv_endpoint": found.endpoint, "rdzv_id": found.job}
    flags = Flags(nnodes=_SEVERAL, **given)
    backend, endpoint = meeting_place(flags)
    loaded = manager.load_backend(backend, named=plugins_named(flags, os.environ))
    options = loaded.rendezvous_options()
    if options.handler or options.single_node:
        why = "is a rendezvous handler of others" if options.handler else "serves one node"
        raise NoStoreError(
            f"The {backend} backend {why}, so there is no store in which other processes find the job.",
            hint="Name the job's store: --rdzv_backend, --rdzv_endpoint and --rdzv_id. An agent leaves on SIGTERM.",
            job=flags.rdzv_id,
        )
    conf = parse_conf(flags.rdzv_conf, backend=backend, options=options)
    token, job = job_token.read_token(os.environ, conf.token_file), flags.rdzv_id or DEFAULT_ID
    store = loaded.make_rendezvous(RendezvousParameters(backend, endpoint, job, 1, 2, token=token, config=conf.backend))
    assert isinstance(store, RendezvousBackend)
    with closing(store):
        yield store, job


def is_store_named(given: Mapping[str, Any]) -> bool:
    """Return whether the values of :data:`STORE_FLAGS` name a store."""
    return bool(given["rdzv_backend"] or given["rdzv_endpoint"])


def _find(job: str | None) -> FoundJob:
    """Return the job that a plugin of the group ``elastic.jobs`` knows."""
    from elastic_core.distributions import brought
    from elastic_core.plugins import manager
    from elastic_core.plugins.entry_points import Catalogue, Group, load

    plugins, offers = manager.Plugins(), Catalogue.read().offers(Group.JOBS)
    for offer in offers:
        plugins.register(offer.name, load(offer), described=str(offer))
    found = plugins.first_answer("elastic_find_job", job=job)
    if isinstance(found, FoundJob):
        return found
    which = "running job" if job is None else f"running job {job!r}"
    hint = "Name the job's store: --rdzv_backend, --rdzv_endpoint and --rdzv_id."
    if not offers:
        hint += f" Or have it found: {how_to_install(next(iter(brought(Group.JOBS.kind).values())))}"
    raise NoStoreError(f"No {which} of this user was found on this host.", hint=hint)
