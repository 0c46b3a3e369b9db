"""The store of a running job, for commands that look at the job or ask something of it, as ``elastic status``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from elastic_core.cli import FlagOption, meeting_place, plugins_named
from elastic_core.config import DEFAULT_ID, FLAGS, LOCAL, Flags
from elastic_core.config.parse import NodeRange
from elastic_core.errors import UsageError
from elastic_core.rendezvous import RendezvousBackend

if TYPE_CHECKING:
    from elastic_operate.host_jobs import SilentAgentError
    from elastic_operate.job_file import JobFile

NAME_IT = "Name the job's store: --rdzv_backend, --rdzv_endpoint and --rdzv_id."
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

    If they name neither a backend nor an endpoint, it is that of a job of this user on this host.

    Raises:
        NoStoreError: The backend has no such store, or no agent of the job is known here.
        UsageError: A flag is wrong, or several jobs are meant.
        PluginError: The backend's plugin cannot be loaded.
        RendezvousConnectionError: The store cannot be reached.
    """
    from elastic_core.config import parse_conf
    from elastic_core.plugins import load_backend
    from elastic_core.rendezvous import RendezvousParameters, read_token
    from elastic_operate.host_jobs import SilentAgentError, find_job  # none of this for --help

    if not is_store_named(given):
        name = given["rdzv_id"]
        if (known := find_job(name)) is None:
            which = "running job" if name is None else f"running job {name!r}"
            raise NoStoreError(f"No {which} of this user was found on this host.", hint=NAME_IT)
        agent = known.newest
        try:
            found = known.connect()
        except SilentAgentError as exc:
            given = {**given, **_flags_of(agent, exc)}
        else:
            with closing(found):
                if not found.has_store:
                    message = f"Job {agent.job!r} runs over a rendezvous handler of others, which keeps no store."
                    raise NoStoreError(message, job=agent.job)
                found.open()
                yield found, agent.job
            return
    flags = Flags(nnodes=_SEVERAL, **given)
    backend, endpoint = meeting_place(flags)
    loaded = load_backend(backend, named=plugins_named(flags, os.environ))
    options = loaded.rendezvous_options()
    if options.handler or options.single_node:
        why = "is a rendezvous handler of others" if options.handler else "serves one node"
        raise NoStoreError(
            f"The {backend} backend {why}, so there is no store in which other processes find the job.",
            hint=f"{NAME_IT} An agent leaves on SIGTERM.",
            job=flags.rdzv_id,
        )
    conf = parse_conf(flags.rdzv_conf, backend=backend, options=options)
    token, job = read_token(os.environ, conf.token_file), flags.rdzv_id or DEFAULT_ID
    store = loaded.make_rendezvous(RendezvousParameters(backend, endpoint, job, 1, 2, token=token, config=conf.backend))
    assert isinstance(store, RendezvousBackend)
    with closing(store):
        yield store, job


def _flags_of(agent: JobFile, silent: SilentAgentError) -> dict[str, str]:
    """Return the flags that name the store of an agent that does not answer."""
    if agent.backend == LOCAL:  # there is no store
        raise NoStoreError(silent.message, hint=silent.hint or "See its output, or wait.", job=agent.job) from silent
    if "***" in agent.endpoint:
        hint = "Name the job's store with its password: --rdzv_backend, --rdzv_endpoint and --rdzv_id."
        raise type(silent)(silent.message, hint=hint) from silent
    click.echo(f"elastic: {silent}", err=True)
    return {"rdzv_backend": agent.backend, "rdzv_endpoint": agent.endpoint, "rdzv_id": agent.job}


def is_store_named(given: Mapping[str, Any]) -> bool:
    """Return whether the values of :data:`STORE_FLAGS` name a store."""
    return bool(given["rdzv_backend"] or given["rdzv_endpoint"])
