"""The hooks of core inside a Slurm job: the defaults of flags."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping

import click

from elastic_core import hookimpl
from elastic_core.config import SHUTDOWN_VARIABLE
from elastic_slurm import allocation, defaults, shared_directory


@hookimpl
def elastic_scheduler_defaults(
    environ: Mapping[str, str], given: Mapping[str, object]
) -> Mapping[str, tuple[str, str]] | None:
    """Return what follows from the allocation; the first node says so in one line on stderr."""
    if (here := allocation.read(environ)) is None:
        return None
    if environ.get(SHUTDOWN_VARIABLE):
        given = {**given, "shutdown_timeout": environ[SHUTDOWN_VARIABLE]}
    found = defaults.flag_defaults(here, given, functools.partial(shared_directory.find, environ))
    if not here.first:
        return found
    for text in (defaults.warning(here, given), defaults.few_cpus(here, given, len(os.sched_getaffinity(0)))):
        if text is not None:
            click.echo(f"elastic: warning: {text}", err=True)
    if found:
        click.echo(f"elastic: {defaults.describe(found, here.job)}", err=True)
    return found
