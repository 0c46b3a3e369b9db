"""``elastic plugins``: the installed plugins, their distributions and hooks, and why some fail to load."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import groupby

import click

from elastic_core import __version__
from elastic_core.errors import PluginError
from elastic_core.plugins import Catalogue, Group, InstalledPlugin, core_plugins, hooks_of, import_plugin


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of the list."""

    name: str
    group: str
    distribution: str
    version: str
    summary: str = ""
    hooks: tuple[str, ...] = ()
    error: str | None = None  # why the plugin cannot be used, or None


def inventory(catalogue: Catalogue) -> list[Listed]:
    """Return core's defaults, then all installed plugins by group; imports every plugin."""
    found = [
        Listed(name, "built in", "elastic-core", __version__, _summary(plugin), tuple(hooks_of(plugin, name)))
        for name, plugin in core_plugins().items()
    ]
    for offer in (offer for group in Group for offer in catalogue.offers(group)):
        row = Listed(offer.name, offer.group.key, offer.distribution, offer.version)
        try:
            plugin = import_plugin(catalogue.find(offer.name, offer.group))
            row = replace(row, summary=_summary(plugin, offer))
            if offer.group not in (Group.COMMANDS, Group.ADAPTERS):
                row = replace(row, hooks=tuple(hooks_of(plugin, str(offer))))
        except PluginError as exc:
            row = replace(row, error=exc.message)
        found.append(row)
    return found


def _summary(plugin: object, offer: InstalledPlugin | None = None) -> str:
    """Return what a plugin does: the help of a command, the summary of a distribution; for core, of the docstring."""
    if isinstance(plugin, click.Command):
        return plugin.get_short_help_str(200)
    if offer is not None and offer.distribution != "elastic-core":
        return offer.summary
    return (inspect.getdoc(plugin) or "").partition("\n")[0].replace("``", "`")


def table(listed: Iterable[Listed], width: int) -> str:
    """Return the list as text, at most ``width`` columns wide where words allow."""
    rows = list(listed)
    name_width = max(len(row.name) for row in rows)
    lines = []
    for group, members in groupby(rows, key=lambda row: row.group):
        lines.append(group)
        for row in members:
            lines.append(f"  {row.name:{name_width}}  {row.distribution} {row.version}")
            indent = " " * (name_width + 4)
            for remark in [f"FAILED: {row.error}"] if row.error else [row.summary, ", ".join(row.hooks)]:
                lines += textwrap.wrap(remark, width, initial_indent=indent, subsequent_indent=indent)
    return "\n".join(lines)


@click.command("plugins", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, for programs.")
def command(as_json: bool) -> None:
    """List the plugins that are installed, and the error of each plugin that fails to load."""
    listed = inventory(Catalogue.read())
    if as_json:
        click.echo(json.dumps([asdict(row) for row in listed], indent=2))
    else:
        click.echo(table(listed, click.formatting.HelpFormatter().width))
