"""Writes ``docs/flags.md`` and ``docs/environment.md`` from the declarations in the code.

    python docs/render_reference.py

A test compares the pages with what this makes of the code.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from elastic_core.cli.options import FLAGS
from elastic_core.config.environment import VARIABLES, Use

DOCS = Path(__file__).parent
FLAGS_PREFACE = """\
# The flags of `elastic run`

Made by `python docs/render_reference.py` from
[`elastic_core.cli.options`](../core/src/elastic_core/cli/options.py); change them there. `elastic run --help` shows the
same. Flags may be written with `-` or `_`. Each is also read from the variable of its row.
[migrating.md](migrating.md#every-flag-of-torchruns) compares them with torchrun's.
"""
ENVIRONMENT_PREFACE = """\
# Environment variables

Made by `python docs/render_reference.py` from
[`elastic_core.config.environment`](../core/src/elastic_core/config/environment.py); change them there. Each flag of
`elastic run` is also read from a variable `PET_<FLAG>`: [flags.md](flags.md) lists those.
"""
USES = {
    Use.SET: "Set for each worker",
    Use.DEFAULTED: "Set for each worker, unless the agent has it already",
    Use.READ: "Read by the agent",
    Use.FORK_SERVER: "Set for the fork server while it starts",
    Use.SERVICE: "Set for a service that starts as a fresh interpreter",
}


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(head)
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(_cell(text) for text in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def flags() -> str:
    """The page of the flags, by section, in the order of the help."""
    parts = [FLAGS_PREFACE]
    for section, members in groupby(FLAGS, key=lambda flag: flag.section):
        rows = []
        for flag in members:
            spelled = ", ".join(f"`{text}`" for text in (*flag.opts, *flag.secondary_opts))
            metavar = f" `{flag.metavar}`" if flag.metavar else ""
            usual = f"`{flag.opts[0]}`" if flag.secondary_opts else flag.default
            default = f" Default: {usual}." if flag.show_default else ""
            rows.append((spelled + metavar, f"{flag.help or ''}{default}", f"`{flag.envvar}`"))
        parts.append(f"## {section}\n\n{_table(('flag', 'meaning', 'variable'), rows)}")
    return "\n".join(parts)


def environment() -> str:
    """The page of the variables, by use, in the order of the code."""
    parts = [ENVIRONMENT_PREFACE]
    for use, title in USES.items():
        rows = [(f"`{variable.name}`", variable.meaning) for variable in VARIABLES if variable.use is use]
        parts.append(f"## {title}\n\n{_table(('variable', 'meaning'), rows)}")
    return "\n".join(parts)


PAGES = {"flags.md": flags, "environment.md": environment}

if __name__ == "__main__":
    for name, render in PAGES.items():
        (DOCS / name).write_text(render(), encoding="utf-8")
