"""The finding of one check: a state, the observation and the advice; as people read it, a line each, and in JSON."""

from __future__ import annotations

import enum
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import click

from elastic_core.errors import ElasticError, without_passwords
from elastic_core.exit_codes import ExitCode
from elastic_core.host import printable


class State(str, enum.Enum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"  # a job can run, and may meet trouble
    WRONG = "wrong"  # a job cannot run so
    SKIPPED = "skipped"  # it could not be tried, and why is said


COLOURS = {State.OK: "green", State.WARNING: "yellow", State.WRONG: "red", State.SKIPPED: "bright_black"}
STATE_WIDTH = max(len(state.value) for state in State)
NAME_WIDTH = len("shared memory")
INDENT = " " * (2 + STATE_WIDTH + 2 + NAME_WIDTH + 2)  # before the observation; the advice begins there, too
OF_STORE = ("connect", "connections", "roster", "ledger", "waiting", "isolation", "heartbeat time", "wake-up time")
"""The checks of a store, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's outcome. No text of it shows a password."""

    name: str  # the check's, in a word or two
    state: State
    seen: str  # the observation, in one line
    advice: str | None = None  # the advice; None where nothing needs to be done
    exit_code: int = ExitCode.SUCCESS  # the exit code of a run that meets this; 0 unless it is wrong
    measured: Mapping[str, float] = field(default_factory=dict)  # figures by name, which ends in the unit

    def __post_init__(self) -> None:
        object.__setattr__(self, "seen", _one_line(self.seen))
        if self.advice is not None:
            object.__setattr__(self, "advice", _one_line(self.advice))

    def as_json(self) -> dict[str, Any]:
        """Its fields, as JSON has them."""
        return {**asdict(self), "state": self.state.value, "exit_code": int(self.exit_code)}


def ok(name: str, seen: str, **measured: float) -> Finding:
    """All is well."""
    return Finding(name=name, state=State.OK, seen=seen, measured=measured)


def warning(name: str, seen: str, advice: str, **measured: float) -> Finding:
    """Return the finding that a job can run, and may meet trouble."""
    return Finding(name=name, state=State.WARNING, seen=seen, advice=advice, measured=measured)


def wrong(
    name: str, seen: str, advice: str | None, exit_code: int = ExitCode.UNREACHABLE, **measured: float
) -> Finding:
    """Return the finding of a check after which no job can run."""
    return Finding(name=name, state=State.WRONG, seen=seen, advice=advice, exit_code=exit_code, measured=measured)


def skipped(name: str, seen: str) -> Finding:
    """Return the finding of a check that could not be made."""
    return Finding(name=name, state=State.SKIPPED, seen=seen)


def refused(name: str, error: ElasticError, during: str = "") -> Finding:
    """Return what one of our errors says, and the exit code that a run would end with; ``during`` is what was tried."""
    return wrong(name, f"{during}: {error.message}" if during else error.message, error.hint, error.exit_code)


def verdict(findings: Iterable[Finding]) -> int:
    """Return the exit code for all of them: that of the first one that is wrong, which is the cause of what follows."""
    return next((int(finding.exit_code) for finding in findings if finding.state is State.WRONG), ExitCode.SUCCESS)


def _one_line(text: str) -> str:
    return " ".join(without_passwords(text).split())


def title(backend: str, endpoint: str, host: str) -> str:
    """Return the first line."""
    at = f" at {without_passwords(endpoint)}" if endpoint else ""
    return printable(f"Can nodes meet over {backend}{at}? Tried from {host}.")


def section(finding: Finding) -> str:
    """Return the heading that a finding stands under."""
    return "The store" if finding.name in (*OF_STORE, "store", "listener", "traces", "the rest") else "This host"


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
