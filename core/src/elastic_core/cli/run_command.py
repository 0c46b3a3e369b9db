"""The command ``elastic run``: its options in sections, and the values of one command line.

Both spellings of a flag work, ``--rdzv_id`` and ``--rdzv-id``, and each is also read from ``PET_RDZV_ID``.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

import click

from elastic_core.cli.option import FlagCommand
from elastic_core.cli.options import FLAGS
from elastic_core.config import parse
from elastic_core.config.run import MAX_RESTARTS, OnNodeLoss, StreamMap


class RunCommand(FlagCommand):
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
            context_settings={"allow_interspersed_args": False},
        )

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


ONE_NODE = parse.NodeRange(1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The values of one command line, each by itself right; what they mean together is ``cli.run``'s."""

    script: str | None = None
    arguments: tuple[str, ...] = ()
    nnodes: parse.NodeRange = ONE_NODE
    nproc_per_node: int | str = 1
    role: str = "default"
    standalone: bool = False
    rdzv_backend: str | None = None
    rdzv_endpoint: str = ""
    rdzv_id: str | None = None
    rdzv_conf: str = ""
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    local_addr: str | None = None
    allow_version_mismatch: bool = False
    module: bool = False
    no_python: bool = False
    run_path: bool = False
    use_env: bool = True
    warm_start: bool = True
    preload: tuple[str, ...] | None = None
    virtual_local_rank: bool = False
    numa_binding: str | None = None
    max_restarts: int = MAX_RESTARTS
    on_node_loss: OnNodeLoss = OnNodeLoss.REPLACE
    shutdown_timeout: float | None = None
    failure_grace: float = 3.0
    preemption_grace: float = 0.0
    signals_to_handle: tuple[signal.Signals, ...] | None = None
    log_dir: str | None = None
    redirects: StreamMap = field(default_factory=StreamMap)
    tee: StreamMap = field(default_factory=StreamMap)
    local_ranks_filter: frozenset[int] | None = None
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    event_log_handler: str = "null"
    monitor_interval: float | None = None
    start_method: str | None = None
    logs_specs: str | None = None
    verbose: bool = False
    plugin: tuple[str, ...] = ()
    no_plugin: tuple[str, ...] = ()
