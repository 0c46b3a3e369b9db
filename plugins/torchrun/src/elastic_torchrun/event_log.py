"""Writes each event as a JSON line to stderr: torchrun's flag ``--event_log_handler``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TextIO

from elastic_core import hookimpl
from elastic_core.config import Flag, RunConfig
from elastic_core.config.parse import one_of
from elastic_core.events import Event

HANDLERS = ("null", "console")
FLAG = Flag(
    name="event_log_handler",
    text="Write each event as a JSON line to stderr, or do not.",
    section="Output",
    parse=partial(one_of, HANDLERS),
    default="null",
    metavar="|".join(HANDLERS),
    after="local_ranks_filter",
)


@hookimpl
def elastic_flags() -> Sequence[Flag[Any]]:
    """Return the flag that :class:`EventLog` reads."""
    return (FLAG,)


class EventLog:
    """The plugin."""

    def __init__(self, *, stream: TextIO | None = None, clock: Callable[[], float] = time.time) -> None:
        self._stream, self._clock = sys.stderr if stream is None else stream, clock
        self._is_on = False

    @hookimpl
    def elastic_configure(self, config: RunConfig) -> None:
        """Read the flag."""
        self._is_on = config.of(FLAG) == "console"

    @hookimpl
    def elastic_observe(self, event: Event) -> None:
        """Write the event by one call, so that lines of several threads do not mix."""
        if not self._is_on:
            return
        facts = {
            "time": round(self._clock(), 6),
            "name": event.name,
            "level": event.level.name,
            "message": event.message,
            "fields": dict(event.fields),
        }
        self._stream.write(json.dumps(facts) + "\n")
        self._stream.flush()
