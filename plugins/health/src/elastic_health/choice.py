"""The checks that ``--health_check`` chooses, and the commands that it adds."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence

from elastic_core.errors import UsageError, did_you_mean
from elastic_health.checks import ChosenCheck, NodeCheck

NONE = "none"  # in place of a name: no check is on but for those that are named


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
