"""An observer: append every event to a file, one JSON object a line.

A plugin may be a class, as here: Elastic makes one instance per run, without arguments.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from elastic_core import hookimpl
from elastic_core.events import Event

PATH_VARIABLE = "ELASTIC_EVENT_FILE"


class EventFile:
    """Writes where ``ELASTIC_EVENT_FILE`` says, by default to ``elastic-events.jsonl``."""

    def __init__(self) -> None:
        self._path = Path(os.environ.get(PATH_VARIABLE) or "elastic-events.jsonl")

    @hookimpl
    def elastic_observe(self, event: Event) -> None:
        """Append the event. If the disk is full this raises: Elastic says so once, and the job goes on without us."""
        record = {"event": event.name, "level": event.level.name, "message": event.message, **event.fields}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
