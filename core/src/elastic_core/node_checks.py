"""Health checks of a node: what a check is, and what the output of a command means.

Plugins offer checks by name (``hookspecs.elastic_node_checks``), another hook chooses among them, and ``agent.health``
runs them before the node enters its job. This module is pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from elastic_core.exit_codes import describe_exit

MESSAGE_FIELDS = ("failed_checks", "messages", "message", "errors", "error")  # of a JSON answer, in this order
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
    """Run as a process if there is no ``look``. Exit code 0 means healthy, unless its JSON has a ``fail_count``. The
    text after ``NAME=``, if there is one, is its last argument."""
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
    too_slow: str = "Run it by hand on this host."  # what to do where a command does not end in time


def judge_output(returncode: int, stdout: str, stderr: str) -> str | None:
    """Return why a command that has ended found the node unhealthy; None if it is healthy.

    A JSON object on stdout with a ``fail_count``, as the health checks of NVIDIA's resiliency extension write it, says
    so too: both the exit code and ``fail_count`` must be 0.
    """
    answer = _json_answer(stdout)
    if answer is None:
        if returncode == 0:
            return None
        return f"{describe_exit(returncode)}: {_last_line(stderr) or _last_line(stdout) or 'it wrote nothing'}"
    count = answer["fail_count"]
    if returncode == 0 and count in (0, "0"):
        return None
    told = dict.fromkeys(text for name in MESSAGE_FIELDS for text in _texts(answer.get(name)))
    why = ("; ".join(told) or _last_line(stderr) or "it gave no message")[:MESSAGE_CHARACTERS]
    if count in (0, "0"):
        return f"{describe_exit(returncode)}, although its fail_count is 0: {why}"
    return f"found {count} fault{'s' * (count not in (1, '1'))}: {why}"


def _json_answer(stdout: str) -> Mapping[str, object] | None:
    """Return the JSON object with a ``fail_count``: all of stdout, or one of its lines, the last first."""
    for text in (stdout, *reversed(stdout.splitlines())):
        if "fail_count" in text:
            try:
                answer = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(answer, dict) and "fail_count" in answer:
                return answer
    return None


def _texts(value: object) -> list[str]:
    """Return the messages in a field: a text, or a list of texts or of objects."""
    if value is None or value == "":
        return []
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value if isinstance(value, str) else json.dumps(value)]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:MESSAGE_CHARACTERS] if lines else ""
