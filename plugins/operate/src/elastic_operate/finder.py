"""The plugin for commands: finds a job of this host by the files that its agents keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core import hookimpl

if TYPE_CHECKING:
    from elastic_core.rendezvous import FoundJob


@hookimpl
def elastic_find_job(job: str | None) -> FoundJob | None:
    """Return the job with a connection by way of its agent; without one if the agent does not answer."""
    import click

    from elastic_core.cli import NoStoreError
    from elastic_core.config import LOCAL
    from elastic_core.rendezvous import FoundJob
    from elastic_operate.host_jobs import SilentAgentError, find_job

    if (found := find_job(job)) is None:
        return None
    agent = found.newest
    try:
        store = found.connect()
    except SilentAgentError as exc:
        if agent.backend == LOCAL:  # there is no store
            raise NoStoreError(exc.message, hint=exc.hint or "See its output, or wait.", job=agent.job) from exc
        if "***" in agent.endpoint:
            hint = "Name the job's store with its password: --rdzv_backend, --rdzv_endpoint and --rdzv_id."
            raise SilentAgentError(exc.message, hint=hint) from exc
        click.echo(f"elastic: {exc}", err=True)
        return FoundJob(agent.job, agent.backend, agent.endpoint)
    if not store.has_store:
        store.close()
        message = f"Job {agent.job!r} runs over a rendezvous handler of others, which keeps no store."
        raise NoStoreError(message, job=agent.job)
    store.open()
    return FoundJob(agent.job, store=store)
