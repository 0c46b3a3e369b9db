"""``--event_log_handler``."""

from __future__ import annotations

import io
import json

import pytest

from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.errors import UsageError
from elastic_core.events import Event
from elastic_torchrun.event_log import FLAG, EventLog


def written(event: Event, **settings: str) -> list[str]:
    """Return the lines that are written for an event."""
    stream = io.StringIO()
    log = EventLog(stream=stream, clock=lambda: 12.5)
    log.elastic_configure(RunConfig(program=Program(ProgramKind.SCRIPT, "train.py"), settings=settings))
    log.elastic_observe(event)
    return stream.getvalue().splitlines()


def test_an_event_log_is_json_lines() -> None:
    [line] = written(Event("round_started", "round 1:\n4 workers", fields={"round": 1}), event_log_handler="console")
    assert json.loads(line) == {
        "time": 12.5,
        "name": "round_started",
        "level": "INFO",
        "message": "round 1:\n4 workers",
        "fields": {"round": 1},
    }


def test_there_is_none_by_default() -> None:
    assert written(Event("round_started", "round 1")) == []


def test_another_handler_is_refused() -> None:
    with pytest.raises(UsageError, match="--event_log_handler 'x' is neither null nor console"):
        FLAG.read("x")
