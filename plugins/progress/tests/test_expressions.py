"""The check of expressions that users give: which are refused, with which reason, and which are taken."""

from __future__ import annotations

import pytest

from elastic_core.config.parse import Wrong
from elastic_core.errors import UsageError
from elastic_core.progress import PROGRESS_GROUPS
from elastic_progress.patterns import (
    CHECKPOINT_GROUPS,
    compile_expression,
    compile_expressions,
    needle_of,
)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("(", "is not a regular expression: missing )"),
        (r"step \d+", "has no named group; it needs one of step, loss, samples, epoch"),
        (r"(?P<steps>\d+)", "has the group 'steps'; known are step, loss, samples, epoch"),
        (r"(?P<step>(\d+)+)$", "repeats something that is repeated"),
        (r"(?P<step>(a|a)*)$", "repeats something that is repeated or has alternatives"),
        (r"(?P<step>(a?){40}a)", "repeats something that is repeated"),
        (r"(?P<step>\d*\d*\d*\d*\d*\d*\d*x)", "takes too long"),
        ("a?" * 30 + r"(?P<step>\d)", "more than 20 repeats"),
    ],
)
def test_expressions_that_are_refused(expression: str, why: str) -> None:
    with pytest.raises(Wrong) as refused:
        compile_expression(expression, PROGRESS_GROUPS, needs_group=True)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    "expression",
    [
        r"step (?P<step>\d+) loss (?P<loss>\S+)",
        r".*epoch.*(?P<epoch>\d+).*step.*(?P<step>\d+).*loss.*(?P<loss>\d+\.\d+)",
        r".*step.*?(?P<step>\d+).*loss.*?(?P<loss>[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)",
        r"^\[(?P<epoch>\d+)/\d+\]\[\s*(?P<step>\d+)/\s*\d+\]\s+(?:loss|Loss):?\s*(?P<loss>\S+)",
        r"(?i)iter\s*[:=]\s*(?P<step>\d+)",
        r"(?P<step>\d++)",
    ],
)
def test_usual_expressions_are_taken(expression: str) -> None:
    import sys

    if "++" in expression and sys.version_info < (3, 11):
        return
    compile_expression(expression, PROGRESS_GROUPS, needs_group=True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"progress_pattern": "step"},
            "--progress_pattern 'step' has no named group; it needs one of step, loss, samples, epoch. "
            r"An example: step (?P<step>\d+) loss (?P<loss>\S+)",
        ),
        (
            {"checkpoint_pattern": r"(?P<loss>\d+)"},
            r"--checkpoint_pattern '(?P<loss>\\d+)' has the group 'loss'; known are step, path. "
            r"An example: saved (?P<path>\S+) at step (?P<step>\d+)",
        ),
    ],
)
def test_a_flag_with_a_wrong_expression_is_refused_with_an_example(flags: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        compile_expressions(**flags)
    assert refused.value.message == message


def test_a_checkpoints_expression_needs_no_group() -> None:
    compile_expression("saved", CHECKPOINT_GROUPS, needs_group=False)


@pytest.mark.parametrize(
    ("expression", "needle"),
    [
        (r"step (?P<step>\d+) loss (?P<loss>\S+)", " loss "),
        (r"(?P<step>\d+)", ""),
        (r"(?:a|b)(?P<step>\d+)", ""),
        (r"(?:abc)?(?P<step>\d+)", ""),
        (r"(?:abc)+x(?P<step>\d+)", "abc"),
        (r"(?i)step (?P<step>\d+)", ""),
        (r"(?i:step) (?P<step>\d+)", " "),
        (r"(?!never)(?P<step>\d+)", ""),
        (r"(at (?P<step>\d+))", "at "),
    ],
)
def test_the_text_that_every_match_has(expression: str, needle: str) -> None:
    assert needle_of(expression) == needle
