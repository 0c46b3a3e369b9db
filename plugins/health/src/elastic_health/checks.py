"""The types of the health checks of a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

MESSAGE_CHARACTERS = 500  # of one finding, at most


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect of a node: the fact, with its value, and the remedy."""

    what: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """A health check: a function that takes milliseconds, or a command."""

    look: Callable[[str], Finding | None] | None = None
    """Called with the text after ``NAME=``, or ''; None for a healthy node. It runs in the agent, on another thread."""
    command: Sequence[str] = ()
    """Run as a process if there is no ``look``; the text after ``NAME=``, if there is one, is its last argument."""
    advice: str = ""  # what to do where the command fails
    on: bool = False  # whether the check is on without being named; for checks that refuse only what is certain to fail
    parse: Callable[[str], object] | None = None
    """Raises ValueError for a text that may not follow ``NAME=``; None if nothing may follow."""
    form: str = ""  # the form of that text, in words


@dataclass(frozen=True, slots=True)
class ChosenCheck:
    """A check of a run."""

    name: str
    check: NodeCheck
    value: str = ""  # the text after ``NAME=``

    @property
    def command(self) -> list[str]:
        """The argument vector of its process."""
        return [*self.check.command, *([self.value] if self.value else [])]


@dataclass(frozen=True, slots=True)
class ChosenChecks:
    """The checks of a run, and the time that they get."""

    checks: tuple[ChosenCheck, ...]
    timeout: float = 60.0  # seconds that each check may take
    retry: float | None = None  # the pause after which failed checks are run again; None for an end of the agent
