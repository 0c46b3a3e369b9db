"""``elastic release``: confirm that a host is gone for good, so that its job does not wait for the fence (rule S4)."""

from __future__ import annotations

from typing import Any

import click

from elastic_core.cli.drain import RequestCommand, over_the_store


def release(*, host: str, **given: Any) -> int:
    """Confirm that ``host`` is gone, wait until the job has accepted it, and return the exit code."""
    from elastic_core.session.drain_request import release as vouch  # not for --help

    count = over_the_store(given, lambda store, job: vouch(store, host, job))
    click.echo(f"The job goes on without the {count} agent{'s' if count > 1 else ''} that {host} had.")
    return 0


command = RequestCommand(
    "release",
    release,
    "Say that HOST is gone for good, with all processes of the job that these flags of `elastic run` name.\n\n"
    "A job that has lost all nodes of a round waits until their workers have stopped themselves, ten minutes "
    "(--rdzv_conf fence_after), since they may still be training. Where you know that they are not, because the "
    "machine is off or the pod is deleted, this ends the wait. If you are wrong, two rounds train at once.",
    "HOST is the host's name, as agents print it. Refused while the heartbeats of its agents go on. The command ends "
    "as soon as the job has accepted it, for which an agent of the job must run.",
)
