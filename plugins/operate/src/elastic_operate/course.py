"""The course of an agent, as its plugin notes it for commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.monitors import RunningRound


@dataclass(slots=True)
class Course:
    """The newest round of an agent, None before the first; and how the agent has ended, '' while it runs."""

    round: RunningRound | None = None
    end: str = ""
