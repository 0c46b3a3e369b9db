"""``elastic policy replay``: what other failure policies would have decided about a past run."""

from __future__ import annotations

import json
from typing import TextIO

import click

from elastic_policies.flags import has_budget
from elastic_policies.options import DEFAULTS, parse_policies
from elastic_policies.replay import as_lines, as_plain, read_events, replay


@click.group("policy")
def command() -> None:
    """Replay the failures of a run under other failure policies."""


@command.command("replay")
@click.argument("events", type=click.File(encoding="utf-8", errors="replace"))
@click.option(
    "--failure_policy", default="", metavar="NAME=VALUE,...", help=f"As of `elastic run`. Default: {DEFAULTS}."
)
@click.option("--max_restarts", type=click.IntRange(min=0), metavar="N", help="Instead of the run's own limit.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each failure.")
def replay_command(events: TextIO, failure_policy: str, max_restarts: int | None, as_json: bool) -> None:
    """Print what these policies would have decided, beside the run's own decisions.

    EVENTS is an event log (JSON lines with `verdict` events), or - for stdin.
    """
    policies = parse_policies(failure_policy)
    unlimited = max_restarts is None and has_budget(failure_policy)
    rows = replay(read_events(events), policies, max_restarts=max_restarts, unlimited=unlimited)
    if as_json:
        for row in rows:
            click.echo(json.dumps(as_plain(row)))
    else:
        click.echo("\n".join(as_lines(rows)))
