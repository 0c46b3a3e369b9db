"""The click command ``elastic run``: its short help, its whole help, and how the words after the flags are read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import click

from elastic_core.cli.option import FlagCommand
from elastic_core.cli.options import FLAGS

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
                *FLAGS,
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
        flags = [flag for flag in FLAGS if flag.name in SHORT_HELP.split()]
        with formatter.section("Options (--help shows all)"):
            formatter.write_dl([record for flag in flags if (record := flag.get_help_record(ctx))], col_max=27)
        click.echo(formatter.getvalue(), nl=False)
        ctx.exit()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags into the help, section by section."""
        for title, flags in groupby(FLAGS, key=lambda flag: flag.section):
            with formatter.section(title):
                formatter.write_dl([record for flag in flags if (record := flag.get_help_record(ctx))], col_max=27)
