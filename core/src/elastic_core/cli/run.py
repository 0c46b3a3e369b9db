"""``elastic run``: the click command with its two helps, the defaults inside a scheduler's job, and the run itself.

In a scheduler's job, the scheduler's plugin makes defaults of flags out of the scheduler's variables.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from elastic_core.cli import interrupt
from elastic_core.cli.option import ORIGINS, FlagCommand, FlagOption, arrange, candidates
from elastic_core.cli.settle import configure, outline, plugins_named
from elastic_core.config.environment import FLAG_PREFIX, flag_variable
from elastic_core.config.flag import Flag
from elastic_core.config.run import FLAGS, Flags
from elastic_core.distributions import brought, described, may_bring
from elastic_core.errors import ElasticError, PluginError, UsageError, did_you_mean, how_to_install
from elastic_core.exit_codes import ExitCode
from elastic_core.host.identity import host_name

if TYPE_CHECKING:
    from elastic_core.plugins.entry_points import Catalogue
    from elastic_core.warden.client import Warden

_NAMES = frozenset(flag.name for flag in FLAGS)
_CATALOGUE, _OPTIONS = "elastic_core.cli.run.catalogue", "elastic_core.cli.run.options"
"""The keys of a context's ``meta`` for the installed plugins, and the options of their flags, once they are read."""

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
OBSERVERS_GET = 5.0  # seconds that observers get at the end to finish with their events
CONF = "rdzv_conf"
PLACE = ("nnodes", "standalone", "rdzv_backend", "rdzv_endpoint", "node_rank", "master_addr")
"""With one of these flags a command says how nodes meet, and needs no scheduler's plugin."""


class RunCommand(FlagCommand):
    """``elastic run``: its flags in sections; arguments after the program are passed to the program."""

    def __init__(self, callback: Callable[..., int]) -> None:
        super().__init__(
            "run",
            callback=callback,
            params=[
                *map(FlagOption, FLAGS),
                click.Option(["-h"], is_flag=True, is_eager=True, expose_value=False, callback=self._short_help),
                click.Argument(["script"], required=False, type=click.Path(), metavar="PROGRAM"),
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
        declared = _plugins_flags(ctx)
        try:
            left = super().parse_args(ctx, args)
        except click.NoSuchOption as exc:
            _refuse_missing(candidates(exc.option_name.lstrip("-"), brought("flags").keys() - declared.keys()))
            raise
        if others and not ctx.resilient_parsing:
            missing = variables & (brought("flags").keys() - declared.keys())
            _refuse_missing({name for name in missing if os.environ[flag_variable(name)] not in ("", "0")})
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

        catalogue = ctx.meta[_CATALOGUE] = Catalogue.read()
        try:
            ctx.meta[_OPTIONS] = [*map(FlagOption, declared_flags(catalogue, _NAMES).values())]
        except PluginError:
            if not ctx.resilient_parsing and "--help" not in args:
                raise

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options of core's flags and, where they have been read, of plugins' flags."""
        return [*ctx.meta.get(_OPTIONS, ()), *super().get_params(ctx)]

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
        for title, members in groupby(arrange(FLAGS, _plugins_flags(ctx).values()), key=lambda flag: flag.section):
            with formatter.section(title):
                self._write(ctx, formatter, members)

    def _write(self, ctx: click.Context, formatter: click.HelpFormatter, flags: Iterable[Flag[Any]]) -> None:
        options = {option.name: option for option in self.get_params(ctx)}
        records = [options[flag.name].get_help_record(ctx) for flag in flags]
        formatter.write_dl([record for record in records if record], col_max=27)


def _plugins_flags(ctx: click.Context) -> dict[str, Flag[Any]]:
    """Return the flags of plugins, by name, as far as they have been read."""
    return {option.name: option.flag for option in ctx.meta.get(_OPTIONS, ())}


def _refuse_missing(names: Iterable[str]) -> None:
    """Raise UsageError for the first of these flags, whose distribution is not installed."""
    from elastic_core.plugins.flags import not_declared

    for name in sorted(names):
        raise not_declared(name) from None


def with_defaults(flags: Flags, environ: Mapping[str, str], warn: Callable[[str], None], catalogue: Catalogue) -> Flags:
    """Return the flags with the defaults of the scheduler in whose job this process runs.

    That is the first installed plugin, by name, one of whose variables is set: the extras of its entry point name them,
    so that no other plugin is imported. Flags on the command line, or in ``PET_<FLAG>``, win; of ``--rdzv_conf``, each
    key. Where the plugin of a known scheduler is not installed, and no flag says where nodes meet, ``warn`` is called
    with a sentence. ``catalogue`` has the installed plugins.

    Raises:
        UsageError: The plugin refuses the command.
        PluginError: The plugin fails.
    """
    from elastic_core.plugins import manager
    from elastic_core.plugins.entry_points import Group, import_plugin

    context = click.get_current_context()
    offers = catalogue.offers(Group.SCHEDULERS)
    offer = next((each for each in offers if any(environ.get(name) for name in each.entry_point.extras)), None)
    given = {
        flag.name: getattr(flags, flag.name)
        for flag in FLAGS
        if context.get_parameter_source(flag.name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    } | dict(flags.settings)
    if offer is None:
        if may_bring(environ) and not given.keys() & {*PLACE}:
            _warn_of_missing(environ, warn)
        return flags
    plugins = manager.Plugins()
    plugins.register(offer.name, import_plugin(offer), described=str(offer))
    answer = plugins.first_answer("elastic_scheduler_defaults", environ=environ, given=given) or {}
    known = {flag.name: flag for flag in FLAGS}
    for unknown in sorted(answer.keys() - known.keys()):
        meant = did_you_mean(unknown, known)
        raise PluginError(f"The {offer} gives a default to --{unknown}, which is no flag.{meant}")
    used = {flag: value for flag, value in answer.items() if flag not in given or flag == CONF}
    if CONF in used:
        text, origin = used[CONF]
        own = {pair.partition("=")[0].strip() for pair in flags.rdzv_conf.split(",")}
        others = [pair for pair in text.split(",") if pair.partition("=")[0].strip() not in own]
        used[CONF] = ",".join(filter(None, [*others, flags.rdzv_conf])), origin
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


def run(warden: Warden | None, **flags: Any) -> int:
    """Run the job and return its exit code; None for the warden starts one."""
    from elastic_core.agent import start  # not for --help
    from elastic_core.host.own_process import use_one_arena
    from elastic_core.plugins.entry_points import Catalogue

    use_one_arena()
    if warden is None:
        with start.begun() as warden:
            return run(warden, **flags)
    given = Flags(**flags)
    read = click.get_current_context().meta.get(_CATALOGUE)
    installed = functools.cache(lambda: read or Catalogue.read())  # once: it takes 11 ms, in which the starter begins
    early = None
    with contextlib.suppress(UsageError):  # the scheduler's defaults may mend it, and else it is raised below
        start.begin_starter(early := outline(given, os.environ, installed), warden)
    _prefix_logging()
    catalogue = installed()
    before, given = given, with_defaults(given, os.environ, warn, catalogue)
    known = outline(given, os.environ, installed) if early is None or given != before else early
    if known != early:
        start.begin_starter(known, warden)
    from elastic_core.plugins.manager import load, load_backend

    named = plugins_named(given, os.environ)
    config = configure(
        known, given, os.environ, lambda name: load_backend(name, catalogue, named).rendezvous_options(), warn
    )
    loaded = load(config, catalogue)
    if config.signals_to_handle is not None:
        interrupt.discard_again(but=config.signals_to_handle)  # the agent does not leave on the others
    code: int = ExitCode.JOB_FAILED
    try:
        try:
            ending = start.run(config, loaded, warden)
        finally:
            interrupt.discard_again()
        code = ending.exit_code
        if code:
            from elastic_core.worker.library import failure_writer  # seldom needed

            if writer := failure_writer():
                writer.write_ending(ending)
        return code
    except ElasticError as exc:
        code = exc.exit_code
        raise
    finally:
        if unfinished := loaded.close(OBSERVERS_GET):
            from elastic_core.worker.channel import wait_until_ready

            if not wait_until_ready(2, select.POLLOUT, 0):
                os._exit(code)  # the interpreter's end would wait for the reader of stderr, which has stopped
        for name in unfinished:
            click.echo(f"elastic: the observer {name!r} did not finish within {OBSERVERS_GET:g} s.", err=True)


def _prefix_logging() -> None:
    """Have what a driver logs begin like the agent's own lines, where nothing has configured :mod:`logging`."""
    import logging  # after the starter has begun

    if logging.lastResort is not None:
        form = f"[elastic] %(asctime)s {host_name().partition('.')[0]}: %(name)s: %(message)s"
        logging.lastResort.setFormatter(logging.Formatter(form, "%H:%M:%S"))


command = RunCommand(click.pass_obj(run))


def warn(warning: str) -> None:
    """Print a warning for the user, one line on stderr."""
    click.echo(f"elastic: warning: {warning}", err=True)
