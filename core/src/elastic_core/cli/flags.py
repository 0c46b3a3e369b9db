"""The flags of ``elastic run``: what the help shows, and where each value is read.

Both spellings of a flag work, ``--rdzv_id`` and ``--rdzv-id``, and each is also read from ``PET_RDZV_ID``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

import click
from click.core import ParameterSource

from elastic_core.cli import values
from elastic_core.config import OnNodeLoss, StreamMap
from elastic_core.environment import flag_variable
from elastic_core.errors import UsageError


class Flag(click.Option):
    """One option: in its section of the help, also read from its environment variable, its text read by ``parse``."""

    def __init__(self, *spellings: str, section: str, parse: Callable[[str], object] = str, **attributes: Any) -> None:
        super().__init__(spellings, callback=self._read, **attributes)
        self.envvar = flag_variable(self.name or "")
        self.section = section
        self._parse = parse

    def _read(self, ctx: click.Context, _: click.Parameter, given: Any) -> Any:
        """What was given, as the value that it means; for a flag that may be repeated, all its values in a row."""
        if given is None or self.is_flag:
            return given
        if self.multiple:
            return tuple(chain.from_iterable(self._meaning(ctx, text) for text in given))
        return self._meaning(ctx, given)

    def _meaning(self, ctx: click.Context, text: str) -> Any:
        try:
            return self._parse(text)
        except values.Wrong as wrong:
            source = ctx.get_parameter_source(self.name or "")
            raise UsageError(
                f"--{self.name} {text!r} {wrong}.{wrong.suggestion}",
                hint=f"The value comes from {self.envvar}." if source is ParameterSource.ENVIRONMENT else None,
            ) from None


class RunCommand(click.Command):
    """``elastic run``: its options in sections; everything after the script is the script's."""

    def __init__(self, callback: Callable[..., int]) -> None:
        super().__init__(
            "run",
            callback=callback,
            params=[*FLAGS, click.Argument(["script"], required=False), _script_arguments()],
            help="Start PROGRAM on this node as part of a job, and keep the job alive.\n\n"
            "Everything after PROGRAM is passed to it untouched.",
            epilog="Flags may be written with - or _, and are also read from PET_<FLAG>, as --nproc_per_node from "
            "PET_NPROC_PER_NODE. The exit codes are listed in docs/exit_codes.md.",
            context_settings={
                "allow_interspersed_args": False,
                "token_normalize_func": lambda token: token.replace("-", "_"),
                "help_option_names": ["-h", "--help"],
                "max_content_width": 100,
            },
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; an error knows whose it is, so that the hint names the right help."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as exc:
            exc.ctx = exc.ctx or ctx
            raise

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """What follows the command's name in the usage line."""
        return ["[OPTIONS]", "PROGRAM", "[ARGUMENTS]..."]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        sections = {title: [*group] for title, group in groupby(FLAGS, key=lambda flag: flag.section)}
        for title, flags in sections.items():
            with formatter.section(title):
                formatter.write_dl([record for flag in flags if (record := flag.get_help_record(ctx))], col_max=27)


def _script_arguments() -> click.Argument:
    return click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)


JOB, RENDEZVOUS, PROGRAM = "Job size", "Rendezvous", "Program"
FAILURE, OUTPUT, PLUGINS = "Failure", "Output", "Plugins"

FLAGS: Sequence[Flag] = (
    Flag(
        "--nnodes",
        section=JOB,
        parse=values.node_range,
        default="1",
        show_default=True,
        metavar="N|MIN:MAX",
        help="How many nodes; with a range the job starts with MIN, and grows and shrinks.",
    ),
    Flag(
        "--nproc_per_node",
        section=JOB,
        parse=values.count_from_one,
        default="1",
        show_default=True,
        metavar="N",
        help="Workers on this node; nodes may differ.",
    ),
    Flag(
        "--role",
        section=JOB,
        parse=values.not_empty,
        default="default",
        show_default=True,
        metavar="NAME",
        help="The workers' role, as ROLE_NAME tells them.",
    ),
    Flag(
        "--standalone",
        section=RENDEZVOUS,
        is_flag=True,
        help="One node that nobody joins; any other --rdzv_backend and --rdzv_endpoint are ignored.",
    ),
    Flag(
        "--rdzv_backend",
        section=RENDEZVOUS,
        parse=values.not_empty,
        metavar="NAME",
        help="Where the nodes meet; `elastic plugins` lists what is installed.  "
        "[default: c10d with an endpoint HOST[:PORT], local without]",
    ),
    Flag(
        "--rdzv_endpoint",
        section=RENDEZVOUS,
        default="",
        metavar="ENDPOINT",
        help="Its address, in the backend's form: HOST[:PORT] for c10d, DIRECTORY for file.",
    ),
    Flag(
        "--rdzv_id",
        section=RENDEZVOUS,
        parse=values.not_empty,
        metavar="ID",
        help="The job's id, the same on every node.  [default: none]",
    ),
    Flag(
        "--rdzv_conf",
        section=RENDEZVOUS,
        default="",
        metavar="KEY=VALUE,...",
        help="Further settings, such as join_timeout=600 (seconds); a key that does not exist is refused, with a list.",
    ),
    Flag(
        "--local_addr",
        section=RENDEZVOUS,
        parse=values.not_empty,
        metavar="ADDRESS",
        help="The address at which other nodes reach this one.  [default: found by the route to the endpoint]",
    ),
    Flag(
        "--allow_version_mismatch",
        section=RENDEZVOUS,
        is_flag=True,
        help="Let nodes with different versions of Python or torch in.",
    ),
    Flag("--module", "-m", section=PROGRAM, is_flag=True, help="PROGRAM is a module, as with `python -m`."),
    Flag("--no_python", section=PROGRAM, is_flag=True, help="PROGRAM is any executable; it is run without Python."),
    Flag(
        "--max_restarts",
        section=FAILURE,
        parse=values.count_from_zero,
        default="0",
        show_default=True,
        metavar="N",
        help="How many failures of workers the job survives; the loss of a node is none.",
    ),
    Flag(
        "--on_node_loss",
        section=FAILURE,
        parse=values.on_node_loss,
        default=OnNodeLoss.REPLACE.value,
        show_default=True,
        metavar="replace|fail",
        help="Go on without a lost node, or with its replacement; or fail the job.",
    ),
    Flag(
        "--shutdown_timeout",
        section=FAILURE,
        parse=values.seconds,
        default="30",
        show_default=True,
        metavar="SECONDS",
        help="What workers get between SIGTERM and SIGKILL when the job is told to stop.",
    ),
    Flag(
        "--failure_grace",
        section=FAILURE,
        parse=values.seconds,
        default="3",
        show_default=True,
        metavar="SECONDS",
        help="The same after a failure, when most of them hang in a collective.",
    ),
    Flag(
        "--log_dir",
        section=OUTPUT,
        metavar="DIRECTORY",
        help="Keep workers' output there, by round and rank; nothing is ever deleted.",
    ),
    Flag(
        "--redirects",
        "-r",
        section=OUTPUT,
        parse=values.stream_map,
        default="0",
        show_default=True,
        metavar="STREAMS",
        help="Write to files instead of the console: 1 stdout, 2 stderr, 3 both, or by local rank, 0:3,12:1.",
    ),
    Flag(
        "--tee",
        "-t",
        section=OUTPUT,
        parse=values.stream_map,
        default="0",
        show_default=True,
        metavar="STREAMS",
        help="Write to both, in the same form; lines on the console begin with [rank3]:.",
    ),
    Flag("--verbose", "-v", section=OUTPUT, is_flag=True, help="Tell what the agent does in detail."),
    Flag(
        "--plugin",
        section=PLUGINS,
        parse=values.names,
        multiple=True,
        metavar="NAME",
        help="Load an installed plugin, besides those of ELASTIC_PLUGINS; may be repeated.",
    ),
    Flag(
        "--no_plugin",
        section=PLUGINS,
        parse=values.names,
        multiple=True,
        metavar="NAME",
        help="Leave off a plugin that would be loaded; may be repeated.",
    ),
)
"""In the order of the help; those of a section stand together."""

ONE_NODE = values.NodeRange(1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The values of one command line, each by itself right; what they mean together is ``cli.run``'s."""

    script: str | None = None
    arguments: tuple[str, ...] = ()
    nnodes: values.NodeRange = ONE_NODE
    nproc_per_node: int = 1
    role: str = "default"
    standalone: bool = False
    rdzv_backend: str | None = None
    rdzv_endpoint: str = ""
    rdzv_id: str | None = None
    rdzv_conf: str = ""
    local_addr: str | None = None
    allow_version_mismatch: bool = False
    module: bool = False
    no_python: bool = False
    max_restarts: int = 0
    on_node_loss: OnNodeLoss = OnNodeLoss.REPLACE
    shutdown_timeout: float = 30.0
    failure_grace: float = 3.0
    log_dir: str | None = None
    redirects: StreamMap = field(default_factory=StreamMap)
    tee: StreamMap = field(default_factory=StreamMap)
    verbose: bool = False
    plugin: tuple[str, ...] = ()
    no_plugin: tuple[str, ...] = ()
