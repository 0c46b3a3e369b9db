"""Defaults of flags inside a scheduler's job, which the scheduler's plugin makes of the scheduler's variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from elastic_core.cli.option import ORIGINS
from elastic_core.cli.settle import FLAGS, Flags
from elastic_core.distributions import brought, described, may_bring
from elastic_core.errors import PluginError, did_you_mean, how_to_install

if TYPE_CHECKING:
    from elastic_core.plugins.entry_points import Catalogue

CONF = "rdzv_conf"
PLACE = ("nnodes", "standalone", "rdzv_backend", "rdzv_endpoint", "node_rank", "master_addr")
"""With one of these flags a command says how nodes meet, and needs no scheduler's plugin."""


def with_defaults(flags: Flags, environ: Mapping[str, str], warn: Callable[[str], None], catalogue: Catalogue) -> Flags:
    """Return the flags with the defaults of the scheduler in whose job this process runs.

    That is the first installed plugin, by name, one of whose variables is set: the extras of its entry point name them,
    so that no other plugin is imported. Flags on the command line, or in ``PET_<FLAG>``, win; of ``--rdzv_conf``, each
    key. Where the plugin of a known scheduler is not installed, and no flag says where nodes meet, ``warn`` is called
    with a sentence. ``catalogue`` has the installed plugins.

    Raises:
        UsageError: The plugin says that the command cannot be meant.
        PluginError: The plugin fails.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return flags
    from elastic_core.plugins import manager
    from elastic_core.plugins.entry_points import Group, load

    offers = catalogue.offers(Group.SCHEDULERS)
    offer = next((each for each in offers if any(environ.get(name) for name in each.entry_point.extras)), None)
    if offer is None and not may_bring(environ):
        return flags
    given = {
        flag.name: getattr(flags, flag.name)
        for flag in FLAGS
        if context.get_parameter_source(flag.name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    } | dict(flags.settings)
    if offer is None:
        if not given.keys() & {*PLACE}:
            _warn_of_missing(environ, warn)
        return flags
    plugins = manager.Plugins()
    plugins.register(offer.name, load(offer), described=str(offer))
    answer = plugins.first_answer("elastic_scheduler_defaults", environ=environ, given=given) or {}
    known = {flag.name: flag for flag in FLAGS}
    for unknown in sorted(answer.keys() - known.keys()):
        meant = did_you_mean(unknown, known)
        raise PluginError(f"The {offer} gives a default to --{unknown}, which is no flag.{meant}")
    used = {flag: value for flag, value in answer.items() if flag not in given or flag == CONF}
    if CONF in used:
        text, origin = used[CONF]
        used[CONF] = ",".join(filter(None, [*_pairs_left(text, flags.rdzv_conf), flags.rdzv_conf])), origin
    context.meta[ORIGINS] = {flag: origin for flag, (_, origin) in used.items()}
    return replace(flags, **{flag: known[flag].read(text) for flag, (text, _) in used.items()})


def _warn_of_missing(environ: Mapping[str, str], warn: Callable[[str], None]) -> None:
    """Warn in the job of a scheduler whose plugin exists and is not installed."""
    for name, variable in described("schedulers").items():
        if job := environ.get(variable):
            distribution = brought("schedulers")[name]
            warn(
                f"This is job {job} of {name}, and {distribution} is not installed, so this node runs by itself. "
                f"Say where the nodes meet (--nnodes, --rdzv_endpoint), or: {how_to_install(distribution)}"
            )


def _pairs_left(text: str, given: str) -> list[str]:
    """Return the pairs of a default of ``--rdzv_conf`` whose keys are not ``given``."""
    keys = {pair.partition("=")[0].strip() for pair in given.split(",")}
    return [pair for pair in text.split(",") if pair.partition("=")[0].strip() not in keys]
