"""Defaults of flags inside a scheduler's job, which the scheduler's plugin makes of the scheduler's variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from elastic_core.cli.options import FLAGS, Flags
from elastic_core.errors import PluginError, did_you_mean

if TYPE_CHECKING:
    from elastic_core.plugins.entry_points import Catalogue

SCHEDULERS: Mapping[str, str] = {"SLURM_JOB_ID": "slurm"}
"""The variable that each scheduler sets in its jobs, and the plugin of the group ``elastic.schedulers`` for it."""
PLACE = ("nnodes", "standalone", "rdzv_backend", "rdzv_endpoint", "node_rank", "master_addr")
"""With one of these flags a command says how nodes meet, and needs no scheduler's plugin."""
_ORIGINS = "elastic_core.cli.scheduler.origins"


def with_defaults(
    flags: Flags, environ: Mapping[str, str], warn: Callable[[str], None], catalogue: Catalogue | None = None
) -> Flags:
    """Return the flags with the defaults of the scheduler in whose job this process runs.

    Flags on the command line, or in ``PET_<FLAG>``, win. Where the plugin is not installed, and no flag says where
    nodes meet, ``warn`` is called with a sentence. ``catalogue`` has the installed plugins; None to read it.

    Raises:
        UsageError: The plugin says that the command cannot be meant.
        PluginError: The plugin fails.
    """
    found = next(((variable, name) for variable, name in SCHEDULERS.items() if environ.get(variable)), None)
    context = click.get_current_context(silent=True)
    if found is None or context is None:
        return flags
    from elastic_core.plugins import manager  # not for other runs
    from elastic_core.plugins.entry_points import BROUGHT_BY, Catalogue, Group, load

    variable, name = found
    given = {
        flag.name: getattr(flags, flag.name)
        for flag in FLAGS
        if context.get_parameter_source(flag.name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    }
    catalogue = catalogue or Catalogue.read()
    if name not in catalogue.names(Group.SCHEDULERS):
        if not given.keys() & {*PLACE}:
            warn(
                f"This is job {environ[variable]} of {name}, and {BROUGHT_BY[Group.SCHEDULERS, name]} is not "
                "installed, so this node runs by itself. Install it, or say where the nodes meet: --nnodes and "
                "--rdzv_endpoint."
            )
        return flags
    plugins, offer = manager.Plugins(), catalogue.find(name, Group.SCHEDULERS)
    plugins.register(name, load(offer), described=str(offer))
    answer = plugins.first_answer("elastic_scheduler_defaults", environ=environ, given=given) or {}
    known = {flag.name: flag for flag in FLAGS}
    for unknown in sorted(answer.keys() - known.keys()):
        raise PluginError(
            f"The {offer} gives a default to --{unknown}, which is no flag.{did_you_mean(unknown, known)}"
        )
    used = {flag: value for flag, value in answer.items() if flag not in given}
    context.meta[_ORIGINS] = {flag: origin for flag, (_, origin) in used.items()}
    return replace(flags, **{flag: known[flag].value_of(context, text) for flag, (text, _) in used.items()})


def origins(context: click.Context) -> Mapping[str, str]:
    """Return the scheduler's variables of each flag that :func:`with_defaults` has set."""
    found: Mapping[str, str] = context.meta.get(_ORIGINS, {})
    return found
