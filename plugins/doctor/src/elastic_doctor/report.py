"""Findings as people read them, a line each, and as programs do, in JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence

import click

from elastic_core.errors import without_passwords
from elastic_core.host import printable
from elastic_doctor.examination import OF_STORE
from elastic_doctor.findings import Finding, State, verdict

COLOURS = {State.OK: "green", State.WARNING: "yellow", State.WRONG: "red", State.SKIPPED: "bright_black"}
STATE_WIDTH = max(len(state.value) for state in State)
NAME_WIDTH = len("shared memory")
INDENT = " " * (2 + STATE_WIDTH + 2 + NAME_WIDTH + 2)
"""The width before the observation; the advice begins there, too."""

_OF_STORE = (*OF_STORE, "store", "listener", "traces", "the rest")


def title(backend: str, endpoint: str, host: str) -> str:
    """Return the first line."""
    at = f" at {without_passwords(endpoint)}" if endpoint else ""
    return printable(f"Can nodes meet over {backend}{at}? Tried from {host}.")


def section(finding: Finding) -> str:
    """Return the heading that a finding stands under."""
    return "The store" if finding.name in _OF_STORE else "This host"


def line(finding: Finding, width: int | None = None) -> str:
    """One finding: its state, its name, what was seen, and below it what to do.

    ``width`` is in columns; None for one line each, however long.
    """
    state = click.style(f"{finding.state.value:{STATE_WIDTH}}", fg=COLOURS[finding.state])
    lines = _wrapped(finding.seen, "", width)
    if finding.advice:
        lines += _wrapped(finding.advice, "-> ", width)
    return f"  {state}  {finding.name:{NAME_WIDTH}}  " + f"\n{INDENT}".join(lines)


def summary(findings: Sequence[Finding], backend: str) -> str:
    """Return the last lines: whether all is well; if not, the first cause, and what to do about it."""
    wrongs, warnings, untried = (
        [finding for finding in findings if finding.state is state]
        for state in (State.WRONG, State.WARNING, State.SKIPPED)
    )
    noted = f"{_count(len(warnings), 'warning')} above" if warnings else ""
    if not wrongs:
        if any(finding.name in ("store", "the rest") for finding in untried):
            well = f"Nothing is wrong as far as it could be tried over {backend}"
        else:
            well = f"{'Nodes' if noted else 'All is well: nodes'} can meet over {backend}"
        return f"{well}; mind the {noted}." if noted else f"{well}."
    first = wrongs[0]
    others = [*([f"{len(wrongs) - 1} more wrong"] if len(wrongs) > 1 else []), *([noted] if noted else [])]
    said = f"Wrong: {first.name}: {printable(first.seen)}"
    told = [said if said.endswith(".") else f"{said}."]
    if first.advice:
        told.append(f"What to do: {printable(first.advice)}")
    if others:
        told.append(f"({', '.join(others)}.)")
    return "\n".join(told)


def as_json(findings: Sequence[Finding], backend: str, endpoint: str) -> str:
    """All of it, as one JSON object."""
    facts = {
        "backend": backend,
        "endpoint": without_passwords(endpoint),
        "exit_code": verdict(findings),
        "findings": [finding.as_json() for finding in findings],
    }
    return json.dumps(facts, indent=2)


def _wrapped(text: str, start: str, width: int | None) -> list[str]:
    text = start + printable(text)
    if width is None:
        return [text]
    return textwrap.wrap(text, max(20, width - len(INDENT)), subsequent_indent=" " * len(start), break_long_words=False)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
