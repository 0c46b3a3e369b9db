"""The check of regular expressions that users give for progress and checkpoints.

A regular expression cannot be interrupted. So an expression that could take long for some line is refused
(:func:`compile_expression`): by its structure, and by the CPU time that it takes for a few long lines.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_core.errors import UsageError
from elastic_core.progress import PROGRESS_GROUPS

USER_LINE_MAX_CHARACTERS = 500  # of a line, its end, for an expression of a user
PROBE_MAX_SECONDS = 0.1  # of CPU, for one line of the greatest length
REPEATS_MAX = 20  # in one expression of a user; the time may double with each
CHECKPOINT_GROUPS = ("step", "path")
PROGRESS_EXAMPLE = r"step (?P<step>\d+) loss (?P<loss>\S+)"
CHECKPOINT_EXAMPLE = r"saved (?P<path>\S+) at step (?P<step>\d+)"


@dataclass(frozen=True, slots=True)
class Expressions:
    """The expressions of a user; None for those that are built in."""

    progress: re.Pattern[str] | None = None
    checkpoint: re.Pattern[str] | None = None


BUILT_IN = Expressions()


class WrongExpression(ValueError):
    """An expression that cannot be used. The text is a clause that follows the expression in a message."""


def compile_expression(
    text: str, groups: Sequence[str], *, needs_group: bool, seconds: Callable[[], float] = time.thread_time
) -> re.Pattern[str]:
    """Compile an expression of a user.

    Raises:
        WrongExpression: It does not compile, has a group of another name or none at all, or could take long.
    """
    try:
        # What begins with .* matches from the start of a line, if at all; a search would try every place in it.
        compiled = re.compile(rf"\A{text}" if text.startswith(".*") else text)
    except (re.error, RecursionError, OverflowError) as exc:
        raise WrongExpression(f"is not a regular expression: {exc}") from None
    unknown = [name for name in compiled.groupindex if name not in groups]
    if unknown:
        raise WrongExpression(f"has the group {unknown[0]!r}; known are {', '.join(groups)}")
    if needs_group and not compiled.groupindex:
        raise WrongExpression(f"has no named group; it needs one of {', '.join(groups)}")
    parsed = _parse(text)
    if _is_nested(parsed, repeated=False):
        raise WrongExpression("repeats something that is repeated or has alternatives, which can take for ever")
    if _count_repeats(parsed) > REPEATS_MAX:
        raise WrongExpression(f"has more than {REPEATS_MAX} repeats, which can take for ever")
    if _is_slow(compiled, _literals(parsed), seconds):
        raise WrongExpression(f"takes too long for some lines of {USER_LINE_MAX_CHARACTERS} characters")
    return compiled


def _parse(text: str) -> Any:
    try:
        from re import _parser  # type: ignore[attr-defined]  # Python 3.11 and later
    except ImportError:
        import sre_parse as _parser  # type: ignore[import-not-found,no-redef,unused-ignore]
    return _parser.parse(text)


_PROBE_LENGTHS = (8, 12, 16, 22, 32, 45, 64, 90, 125, 180, 250, 350, USER_LINE_MAX_CHARACTERS)
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


def _parts(name: str, value: Any) -> list[Any]:
    """Return the expressions within an element of a parsed expression."""
    if name in _REPEATS:
        return [value[2]]
    if name == "SUBPATTERN":
        return [value[3]]
    if name == "BRANCH":
        return list(value[1])
    if name in ("ASSERT", "ASSERT_NOT"):
        return [value[1]]
    if name == "ATOMIC_GROUP":
        return [value]
    if name == "GROUPREF_EXISTS":
        return [part for part in value[1:] if part is not None]
    return []


def _is_nested(parsed: Any, *, repeated: bool) -> bool:
    """Return True if a repeat is within a repeat, or alternatives are: the time may be exponential."""
    for op, value in parsed:
        name, inside = str(op), repeated
        if name in _REPEATS:
            least, most, _ = value
            if repeated and int(least) != int(most):
                return True
            inside = repeated or int(most) > 1
        elif name == "BRANCH" and repeated:
            return True
        if any(_is_nested(part, repeated=inside) for part in _parts(name, value)):
            return True
    return False


def _count_repeats(parsed: Any) -> int:
    """Return how many repeats of a varying count there are."""
    count = 0
    for op, value in parsed:
        name = str(op)
        count += name in _REPEATS and int(value[0]) != int(value[1])
        count += sum(map(_count_repeats, _parts(name, value)))
    return count


def _literals(parsed: Any, *, required: bool = False) -> list[str]:
    """Return the literal texts of an expression, wherever they are; if ``required``, those that each match has."""
    found, run = [], ""
    for op, value in parsed:
        name = str(op)
        if name == "LITERAL":
            run += chr(value)
            continue
        found += [run] if run else []
        run = ""
        if not required or (name == "SUBPATTERN" and not value[1]) or (name in _REPEATS and int(value[0]) > 0):
            found += [text for part in _parts(name, value) for text in _literals(part, required=required)]
    return [*found, run] if run else found


def _is_slow(expression: re.Pattern[str], literals: Sequence[str], seconds: Callable[[], float]) -> bool:
    """Return True if a line takes long that has one character many times, or the literal texts a few times.

    Lines grow, so that none takes ages.
    """
    texts = (" ".join(literals), " 1 ".join([*literals, ""]))
    units = ("1", "a", " ", "=")
    lines = [unit * length for length in _PROBE_LENGTHS for unit in units]
    for line in [*lines, *(text * count for count in (1, 2, 3) for text in texts)]:
        began = seconds()
        expression.search(line[:USER_LINE_MAX_CHARACTERS])
        if seconds() - began > PROBE_MAX_SECONDS:
            return True
    return False


def needle_of(text: str) -> str:
    """Return the longest text that is in every line which the expression ``text`` matches; '' for none."""
    if re.compile(text).flags & (re.IGNORECASE | re.VERBOSE):
        return ""
    return max(_literals(_parse(text), required=True), key=len, default="")


def compile_expressions(progress_pattern: str | None = None, checkpoint_pattern: str | None = None) -> Expressions:
    """Compile what a run was given as ``--progress_pattern`` and ``--checkpoint_pattern``.

    Raises:
        UsageError: One of them cannot be used.
    """
    return Expressions(
        _compile_flag("progress", progress_pattern, PROGRESS_GROUPS, PROGRESS_EXAMPLE),
        _compile_flag("checkpoint", checkpoint_pattern, CHECKPOINT_GROUPS, CHECKPOINT_EXAMPLE),
    )


def _compile_flag(kind: str, text: str | None, groups: Sequence[str], example: str) -> re.Pattern[str] | None:
    try:
        return None if text is None else compile_expression(text, groups, needs_group=kind == "progress")
    except WrongExpression as wrong:
        raise UsageError(f"--{kind}_pattern {text!r} {wrong}. An example: {example}") from None
