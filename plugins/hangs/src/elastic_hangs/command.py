"""``elastic stacks``: where the ranks of a job are, from any host that reaches its store."""

from __future__ import annotations

from typing import Any

import click

from elastic_core.cli import FlagCommand
from elastic_core.exit_codes import ExitCode
from elastic_operate.job_store import STORE_FLAGS, NoStoreError, open_store


def stacks(*, job: str | None, full: bool, **given: Any) -> int:
    """Ask all nodes, or look on this host if the job has no store; print where ranks are, and return the exit code."""
    from elastic_hangs.lookup import ask, describe, locate_local  # not for --help

    if job is not None:
        given["rdzv_id"] = job
    try:
        with open_store(given) as (store, job_id):
            found = ask(store, job_id, full=full)
    except NoStoreError as exc:
        found = locate_local(exc.job or given["rdzv_id"], exc, full=full)
    click.echo("\n".join(describe(found, full=full)))
    return int(ExitCode.SUCCESS)


command = FlagCommand(
    "stacks",
    callback=stacks,
    params=[
        click.Argument(["job"], required=False),
        *STORE_FLAGS,
        click.Option(
            ["--full"],
            is_flag=True,
            help="Print the whole Python stacks of all threads of each rank as well, up to 24 KiB for each node.",
        ),
    ],
    help="Show the line of the script at which each rank of JOB runs or waits. The command stops no rank.\n\nJOB is "
    "the job's --rdzv_id. To name the job's store, give the flags of `elastic run`. Without these flags, the command "
    "searches your jobs on this host.",
    epilog="The command takes one or two seconds and needs write access to the job's store. Jobs of the local backend "
    "and of foreign rendezvous handlers have no store: for these, the command shows the ranks on this host. If a "
    "process does not answer, the command shows its state and the kernel function in which it waits.",
)
