"""Questions that a monitor, or a command, asks all nodes of a round, and what they answer; for plugins.

``elastic_core.monitors.RunningRound.ask`` puts a question, and ``answer`` says what a node answers. The hook
``elastic_sum_up_answers`` makes one report of all answers, which each node gets by ``follow_answers``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

NAME_MAX_CHARACTERS = 32  # of a question
VALUE_MAX_BYTES = 256  # of a question's value, as JSON
ANSWER_MAX_BYTES = 49_152  # of a node's answer, as JSON
REPORT_MAX_BYTES = 4096  # of a report, as JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """A question to all nodes of a round."""

    round: int  # the round's number
    name: str
    value: Any  # what the first node that asks has added to it, JSON
    asked_by: str  # the hosts that ask, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """The answer of one node of the round."""

    node: str  # its host, for people
    ranks: range  # of its workers
    value: Any = None  # the answer of its monitor, JSON; None where no monitor answers that question, or none in time
    finished: bool = False  # whether all its workers have exited with 0; such a node is not asked
    silent: bool = False  # whether it has not answered in time


def encode(value: object, most: int) -> str:
    """Return a value as JSON.

    Raises:
        ValueError: It is no JSON value, or takes more than ``most`` bytes.
    """
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, RecursionError) as exc:
        raise ValueError(f"no JSON value: {exc}") from exc
    if len(text) > most:
        raise ValueError(f"{len(text)} bytes of JSON; at most {most} are taken")
    return text


def check_name(name: str) -> None:
    """Refuse a name that is empty, or longer than ``NAME_MAX_CHARACTERS``, with a ValueError."""
    if not 0 < len(name) <= NAME_MAX_CHARACTERS:
        raise ValueError(f"the name of a question has 1 to {NAME_MAX_CHARACTERS} characters: {name[:40]!r}")
