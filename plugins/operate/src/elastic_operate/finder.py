"""The plugin for commands: finds a job of this host by the files that its agents keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core import hookimpl

if TYPE_CHECKING:
    from elastic_core.rendezvous.backend import FoundJob


@hookimpl
def elastic_find_job(job: str | None) -> FoundJob | None:
    """Return the job with a connection by way of its agent; without one if the agent does not answer."""
    from elastic_core.cli.job_store import NoStoreError
    from elastic_core.config.rdzv_conf import LOCAL
    from elastic_core.rendezvous.backend import FoundJob
    from elastic_operate.host_jobs import SilentAgentError, find_job

    if (found := find_job(job)) is None:
        return None
    agent = found.newest
    try:
        store = found.connect()
    except SilentAgentError as exc:
        if agent.backend == LOCAL or "***" in agent.endpoint:  # there is no store, or its password is not in the file
            raise NoStoreError(exc.message, hint=exc.hint) from exc
        return FoundJob(agent.job, agent.backend, agent.endpoint)
    if not store.has_store:
        raise NoStoreError(f"Job {agent.job!r} runs over a rendezvous handler of others, which keeps no store.")
    store.open()
    return FoundJob(agent.job, store=store)
