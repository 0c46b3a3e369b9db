"""The click command ``elastic run``, with the flags of :mod:`elastic_core.cli.options` in sections.

Both spellings of a flag work, ``--rdzv_id`` and ``--rdzv-id``, and each is also read from ``PET_RDZV_ID``.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import click

from elastic_core.cli.option import FlagCommand
from elastic_core.cli.options import FLAGS


class RunCommand(FlagCommand):
    """``elastic run``: its flags in sections; arguments after the program are passed to the program."""

    def __init__(self, callback: Callable[..., int]) -> None:
        super().__init__(
            "run",
            callback=callback,
            params=[
                *FLAGS,
                click.Argument(["script"], required=False),
                click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED),
            ],
            help="Start PROGRAM on this node as part of a job, and keep the job alive.\n\n"
            "Everything after PROGRAM is passed to it untouched.",
            epilog="Flags may be written with - or _, and are also read from PET_<FLAG>, as --nproc_per_node from "
            "PET_NPROC_PER_NODE. The exit codes are listed in docs/exit_codes.md.",
            context_settings={"allow_interspersed_args": False},
        )

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the words after the command's name in the usage line."""
        return ["[OPTIONS]", "PROGRAM", "[ARGUMENTS]..."]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags into the help, section by section."""
        sections = {title: [*group] for title, group in groupby(FLAGS, key=lambda flag: flag.section)}
        for title, flags in sections.items():
            with formatter.section(title):
                formatter.write_dl([record for flag in flags if (record := flag.get_help_record(ctx))], col_max=27)
