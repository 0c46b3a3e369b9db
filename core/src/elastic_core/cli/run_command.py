"""The click command ``elastic run``: its short help, its whole help, and how the words after the flags are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

import click

from elastic_core.cli.option import FlagCommand, FlagOption, candidates
from elastic_core.cli.settle import FLAGS
from elastic_core.config.environment import FLAG_PREFIX
from elastic_core.config.flag import Flag, arrange
from elastic_core.distributions import brought
from elastic_core.errors import PluginError

_NAMES = frozenset(flag.name for flag in FLAGS)
CATALOGUE, _DECLARED, _OPTIONS = (f"elastic_core.cli.run_command.{name}" for name in ("catalogue", "flags", "options"))

SHORT_HELP = "nnodes nproc_per_node standalone rdzv_backend rdzv_endpoint rdzv_id max_restarts log_dir"
"""The flags that ``-h`` shows; ``--help`` shows all."""
EXAMPLES = """\
Examples:
  # four workers on this machine
  elastic run --standalone --nproc_per_node=4 train.py --lr 0.1

  # on each of two to four machines
  elastic run --nnodes=2:4 --nproc_per_node=8 \\
      --rdzv_endpoint=node1:29400 --rdzv_id=job42 train.py

  # survive ten failures of workers, and keep their output
  elastic run --max_restarts=10 --log_dir=logs -m package.train
"""
EXIT_CODES = (
    "The exit code is 0 if the job is done, 1 if it has failed, 79 if it has failed and may succeed elsewhere, and "
    "128 + N if signal N ended this node. This node alone: 2 wrong command, 69 store not reached, 70 defect of "
    "Elastic, 71 withdrawn, 72 unhealthy, 74 store lost, 75 too few nodes, 76 refused by the job."
)


class RunCommand(FlagCommand):
    """``elastic run``: its flags in sections; arguments after the program are passed to the program."""

    def __init__(self, callback: Callable[..., int]) -> None:
        super().__init__(
            "run",
            callback=callback,
            params=[
                *map(FlagOption, FLAGS),
                click.Option(["-h"], is_flag=True, is_eager=True, expose_value=False, callback=self._short_help),
                click.Argument(["script"], required=False, type=click.Path()),
                click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED),
            ],
            help="Start PROGRAM on this node as part of a job, and keep the job alive.\n\n"
            "Everything after PROGRAM is passed to it untouched.",
            epilog="Flags may be written with - or _, and are also read from PET_<FLAG>, as --nproc_per_node from "
            f"PET_NPROC_PER_NODE.\n\n{EXIT_CODES}",
            context_settings={"allow_interspersed_args": False, "help_option_names": ["--help"]},
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; plugins' flags are read only if it, or a variable, has a name that core does not know.

        Their values are in ``ctx.params["settings"]``, as far as they are not the defaults.
        """
        variables = {name.removeprefix(FLAG_PREFIX).lower() for name in os.environ if name.startswith(FLAG_PREFIX)}
        if others := variables - _NAMES or ctx.resilient_parsing or self._has_other_flags(ctx, args):
            self._read_plugins_flags(ctx, args)
        declared: Mapping[str, Flag[Any]] = ctx.meta.get(_DECLARED, {})
        try:
            left = super().parse_args(ctx, args)
        except click.NoSuchOption as exc:
            _refuse_missing(candidates(exc.option_name.lstrip("-"), brought("flags").keys() - declared.keys()))
            raise
        if others and not ctx.resilient_parsing:
            _refuse_missing(variables & (brought("flags").keys() - declared.keys()))
        values = {name: ctx.params.pop(name, flag.value) for name, flag in declared.items()}
        if settings := {name: value for name, value in values.items() if value != declared[name].value}:
            ctx.params["settings"] = settings
            ctx.params["own_limit"] = any(declared[name].limits_restarts(settings[name]) for name in settings)
        return left

    def _has_other_flags(self, ctx: click.Context, args: list[str]) -> bool:
        """Return whether the command line has flags that are not core's, or abbreviations, or asks for help."""
        ctx.token_normalize_func = lambda token: token.replace("-", "_")
        try:
            given, *_ = self.make_parser(ctx).parse_args([*args])
        except click.UsageError:
            return True
        return (option := self.get_help_option(ctx)) is not None and option.name in given

    def _read_plugins_flags(self, ctx: click.Context, args: list[str]) -> None:
        from elastic_core.plugins.entry_points import Catalogue
        from elastic_core.plugins.flags import declared_flags

        catalogue = ctx.meta[CATALOGUE] = Catalogue.read()
        try:
            declared = ctx.meta[_DECLARED] = declared_flags(catalogue, _NAMES)
        except PluginError:
            if not ctx.resilient_parsing and "--help" not in args:
                raise
        else:
            ctx.meta[_OPTIONS] = [FlagOption(flag) for flag in declared.values()]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options of core's flags and, where they have been read, of plugins' flags."""
        return [*ctx.meta.get(_OPTIONS, ()), *super().get_params(ctx)]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the words after the command's name in the usage line."""
        return ["[OPTIONS]", "PROGRAM", "[ARGUMENTS]..."]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the command does, and three examples."""
        super().format_help_text(ctx, formatter)
        formatter.write_paragraph()
        formatter.write(EXAMPLES)

    def _short_help(self, ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if not wanted or ctx.resilient_parsing:
            return
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        with formatter.section("Options (--help shows all)"):
            self._write(ctx, formatter, [flag for flag in FLAGS if flag.name in SHORT_HELP.split()])
        click.echo(formatter.getvalue(), nl=False)
        ctx.exit()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags into the help, section by section."""
        flags = arrange(FLAGS, ctx.meta.get(_DECLARED, {}).values())
        for title, members in groupby(flags, key=lambda flag: flag.section):
            with formatter.section(title):
                self._write(ctx, formatter, members)

    def _write(self, ctx: click.Context, formatter: click.HelpFormatter, flags: Iterable[Flag[Any]]) -> None:
        options = {option.name: option for option in self.get_params(ctx)}
        records = [options[flag.name].get_help_record(ctx) for flag in flags]
        formatter.write_dl([record for record in records if record], col_max=27)


def _refuse_missing(names: Iterable[str]) -> None:
    """Raise UsageError for the first of these flags, whose distribution is not installed."""
    from elastic_core.plugins.flags import not_declared

    for name in sorted(names):
        raise not_declared(name) from None
