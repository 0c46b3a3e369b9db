"""Health checks of a node: what a check is, and which ones a run has.

Plugins offer checks by name (``hookspecs.elastic_node_checks``), another hook chooses among them, and ``agent.health``
runs them before the node enters its job. This module is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastic_core.exit_codes import describe_exit

MESSAGE_CHARACTERS = 500  # of one finding, at most


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a node is not healthy: what was found, with the value, and what to do about it."""

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


def judge_exit(returncode: int, stdout: str, stderr: str) -> str | None:
    """Return why a command that has ended found the node unhealthy; None if its exit code is 0."""
    said = next((text.splitlines()[-1] for text in (stderr.strip(), stdout.strip()) if text), "it wrote nothing")
    return f"{describe_exit(returncode)}: {said[:MESSAGE_CHARACTERS]}" if returncode else None


@dataclass(frozen=True, slots=True)
class ChosenChecks:
    """The checks of a run, and the time that they get."""

    checks: tuple[ChosenCheck, ...]
    timeout: float = 60.0  # seconds that each check may take
    retry: float | None = None  # the pause after which failed checks are run again; None for an end of the agent
    too_slow: str = "Run it by hand on this host."  # what to do where a command does not end in time
    judge: Callable[[int, str, str], str | None] = judge_exit
    """Returns why the exit code, stdout and stderr of a command say that the node is unhealthy; None if healthy."""
