"""``elastic drain`` and ``elastic release``: requests about a host to the agents of a job, through its store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from elastic_core.cli import FlagCommand
from elastic_core.errors import UsageError
from elastic_operate.job_store import STORE_FLAGS, open_store

if TYPE_CHECKING:
    from elastic_core.rendezvous import RendezvousBackend


def _command(name: str, callback: Callable[..., int], text: str, epilog: str) -> FlagCommand:
    params = [click.Argument(["host"]), *STORE_FLAGS]
    return FlagCommand(name, callback=callback, params=params, help=text, epilog=epilog)


def _drain(*, host: str, **given: Any) -> int:
    """Ask the agents of ``host`` to leave as on SIGTERM, wait until they have answered, and return the exit code."""
    from elastic_operate.drain_request import ask  # not for --help

    count = _request(ask, host, given)
    click.echo(f"{count} agent{'s' if count > 1 else ''} on {host} leave{'' if count > 1 else 's'}.")
    return 0


def _release(*, host: str, **given: Any) -> int:
    """Confirm that ``host`` is gone (rule S4), wait until the job has accepted it, and return the exit code."""
    from elastic_operate.drain_request import release

    count = _request(release, host, given)
    click.echo(f"The job goes on without the {count} agent{'s' if count > 1 else ''} that {host} had.")
    return 0


def _request(request: Callable[[RendezvousBackend, str, str], int], host: str, given: Mapping[str, Any]) -> int:
    """Return the result of ``request``, called with the store that the flags name, the host and the job's id.

    Raises:
        UsageError: ``--rdzv_id`` is only the beginning of a job's id, which is enough for commands that change nothing.
            It has to be the whole id of the job or, for a job of this host, of its run.
    """
    from elastic_operate.host_jobs import host_jobs

    name = given["rdzv_id"]
    with open_store(given) as (store, job):
        if name not in (None, job) and all(each.newest.run != name for each in host_jobs()):
            raise UsageError(f"No job {name!r} was found.", hint=f"There is the job --rdzv_id={job}.")
        return request(store, host, job)


drain = _command(
    "drain",
    _drain,
    "Make all agents of HOST leave a job, as on SIGTERM.\n\nThese flags of `elastic run` name the job; without them it "
    "is your job on this host, which --rdzv_id names if there are several. Workers that call should_checkpoint() stop "
    "together, and no step is lost; other workers get SIGTERM. The job goes on without HOST, if --nnodes allows it. "
    "While the job has other hosts, the host of its own store (c10d) is refused.",
    "HOST is the host's name, as agents print it. The command needs write access to the job's store. It ends as soon "
    "as the agents have answered that they leave.",
)
release = _command(
    "release",
    _release,
    "Confirm that HOST, and every process of the job on it, is gone for good.\n\nThese flags of `elastic run` name the "
    "job; without them it is your job on this host, which --rdzv_id names if there are several. A job that has lost "
    "all nodes of a round waits for ten minutes (--rdzv_conf fence_after), since the workers of these nodes may still "
    "train. If you know that they do not, because the machine is off or the pod is deleted, this command ends the "
    "wait. If you are wrong, two rounds train at once.",
    "HOST is the host's name, as agents print it. The job refuses while the heartbeats of its agents go on. The "
    "command ends as soon as an agent of the job has accepted the release.",
)
