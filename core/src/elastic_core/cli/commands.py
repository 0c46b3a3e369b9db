"""The command ``elastic``: finds its subcommands, and imports only the one that is called."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from elastic_core.cli.interrupt import raise_again
from elastic_core.errors import ElasticError, PluginError, UsageError, did_you_mean

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

BUILT_IN: Mapping[str, str] = {
    "run": "Start a program on this node as part of a job.",
    "plugins": "List the plugins that are installed.",
}
"""Core's own commands, each ``command`` of a module of this package, and the help in one line."""
HELP = ("-h", "--help")
MAX_WIDTH = 120  # columns of help; a narrower terminal has its own width


class Elastic(click.Group):
    """The group of all commands: core's own, and those in the entry-point group ``elastic.commands``."""

    def __init__(self) -> None:
        flag: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
        super().__init__(
            "elastic",
            help="Launch and supervise distributed training that survives crashes, lost nodes and preemption.",
            context_settings={"help_option_names": list(HELP), "max_content_width": MAX_WIDTH},
            params=[click.Option(["--version"], help="Show the version and exit.", callback=_show_version, **flag)],
            no_args_is_help=False,
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; an empty one asks for the help."""
        return super().parse_args(ctx, args or ["--help"])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return core's commands, then those of plugins."""
        from elastic_core.plugins.entry_points import Catalogue, Group

        return [*BUILT_IN, *(name for name in Catalogue.read().names(Group.COMMANDS) if name not in BUILT_IN)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Import one command.

        Raises:
            UsageError: No command has that name.
            PluginError: The command is not installed, cannot be imported, or is no click command.
        """
        if cmd_name in BUILT_IN:
            own: click.Command = import_module(f"elastic_core.cli.{cmd_name}").command
            return own
        from elastic_core.distributions import brought
        from elastic_core.plugins.entry_points import Catalogue, Group, load

        catalogue = Catalogue.read()
        if cmd_name not in catalogue.names(Group.COMMANDS) and cmd_name not in (others := brought(Group.COMMANDS.kind)):
            known = {*self.list_commands(ctx), *others}
            is_program = cmd_name.endswith(".py") or os.path.exists(cmd_name)
            meant = f" Did you mean: elastic run {cmd_name}?" if is_program else did_you_mean(cmd_name, {*known, *HELP})
            raise UsageError(f"There is no command {cmd_name!r}.{meant}", hint="See elastic --help.")
        offer = catalogue.find(cmd_name, Group.COMMANDS)
        command = load(offer)
        if not isinstance(command, click.Command):
            raise PluginError(f"The {offer} is no click command.")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, in which SIGINT raises KeyboardInterrupt; for ``run``, start the warden before."""
        if ctx.resilient_parsing:  # a shell completes the line
            with suppress(ElasticError):
                return super().resolve_command(ctx, args)
            return None, None, args
        if args[:1] == ["run"] and not {*HELP} & {*args}:
            from elastic_core.agent.start import begun

            ctx.obj = ctx.with_resource(begun())
        found = super().resolve_command(ctx, args)
        raise_again()
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin so, without importing commands of plugins."""
        from click.shell_completion import CompletionItem  # a launch does without it

        begun = [CompletionItem(name, help=text) for name, text in self._texts(ctx) if name.startswith(incomplete)]
        return [*begun, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, without importing those of plugins."""
        with formatter.section("Commands"):
            formatter.write_dl(self._texts(ctx))

    def _texts(self, ctx: click.Context) -> list[tuple[str, str]]:
        from elastic_core.distributions import described

        texts = {**described("commands"), **BUILT_IN}
        return [(name, texts.get(name, "From a plugin.")) for name in self.list_commands(ctx)]


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from elastic_core.version import __version__  # a module less on the way of a launch

        click.echo(f"elastic {__version__}")
        ctx.exit()
