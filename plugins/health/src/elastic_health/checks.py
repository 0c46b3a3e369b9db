"""The health checks of a run: their types, and the choice of ``--health_check``, which may add commands."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from elastic_core.errors import UsageError, did_you_mean

NONE = "none"  # in place of a name: no check is on but for those that are named


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


def choose(
    given: Sequence[str], offered: Mapping[str, NodeCheck], which: Callable[[str], str | None] = shutil.which
) -> tuple[ChosenCheck, ...]:
    """Return the checks of a run: those that are on by themselves, then those of ``--health_check``.

    Raises:
        UsageError: A part is neither the name of a check nor a command, or its value is wrong.
    """
    named = [part for part in given if part != NONE]
    found = {} if NONE in given else {name: ChosenCheck(name, check) for name, check in offered.items() if check.on}
    for part in named:
        name, equals, value = part.partition("=")
        if name in offered:
            found[name] = ChosenCheck(name, offered[name], _checked_value(part, offered[name], equals, value))
        else:
            found[part] = ChosenCheck(part, NodeCheck(command=_command(part, offered, which)))
    return tuple(found.values())


def _checked_value(part: str, check: NodeCheck, equals: str, value: str) -> str:
    if not equals:
        return ""
    if check.parse is None:
        raise UsageError(f"--health_check {part!r}: this check takes no value.")
    try:
        check.parse(value)
    except ValueError as exc:
        raise UsageError(f"--health_check {part!r}: {value!r} is not {check.form}.") from exc
    return value


def _command(part: str, offered: Mapping[str, NodeCheck], which: Callable[[str], str | None]) -> list[str]:
    try:
        words = shlex.split(part)
    except ValueError as exc:
        raise UsageError(f"--health_check {part!r} cannot be read as a command: {exc}.") from exc
    if words and which(words[0]) is not None:
        return words
    name = part.partition("=")[0]
    hint = f"The checks are: {', '.join(offered) or 'none'}. A command may stand in place of a name."
    near = did_you_mean(name, offered)
    raise UsageError(f"--health_check {part!r} is neither a check nor a command that is found here.{near}", hint=hint)
