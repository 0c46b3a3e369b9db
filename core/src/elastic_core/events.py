"""Events, which the agent of every node publishes to its observers (``hookspecs.elastic_observe``)."""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Field: TypeAlias = "str | int | float | bool | None"


class Level(enum.IntEnum):
    """The importance of an event for people; the numbers are those of :mod:`logging`."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class Event:
    """One fact that has happened in a run, with flat fields that are ready for JSON."""

    name: str  # ``round_started``, ``worker_failed``, … in snake case; stable, for programs
    message: str  # the fact in one sentence, for people
    level: Level = Level.INFO  # observers get all of them; people see DEBUG only with ``--verbose``
    fields: Mapping[str, Field] = field(default_factory=dict)
    """The particulars; durations are in seconds and named ``…_s``. ``docs/reference/events.md`` lists them."""
    at: float = field(default_factory=time.monotonic, compare=False)
    """When it happened, in seconds on this process's monotonic clock; observers may receive it later. The time of day
    was ``time.time() - (time.monotonic() - event.at)``."""


def least_level(text: str) -> Level:
    """Return the level that ``LOGLEVEL`` names, by a name or number of :mod:`logging`; INFO for another text."""
    number = {"NOTSET": 0, "WARN": 30, "CRITICAL": 50, "FATAL": 50, **Level.__members__}.get(text.upper())
    if number is None and text.isdecimal():
        number = int(text)
    return Level.INFO if number is None else next((level for level in Level if level >= number), Level.ERROR)


def describe_duration(seconds: float) -> str:
    """Return a time for people: ``3.2 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
