"""The finding of one check: a state, the observation, and the advice."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from elastic_core.errors import ElasticError, without_passwords
from elastic_core.exit_codes import ExitCode


class State(str, enum.Enum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"  # a job can run, and may meet trouble
    WRONG = "wrong"  # a job cannot run so
    SKIPPED = "skipped"  # it could not be tried, and why is said


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
