"""The plugin that writes ``verdict.json`` beside the logs, for the scripts of schedulers: how the job has ended.

``docs/reference/exit_codes.md`` describes it. All is imported before the launch: the environment may be gone by then.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from elastic_core import RunSummary, hookimpl
from elastic_core.events import Event, Level
from elastic_core.protocol import Closed
from elastic_core.threads import bounded

VERDICT_FILE, WRITE_MAX_SECONDS = "verdict.json", 5.0  # for which a disk that does not answer is waited for


@hookimpl
def elastic_job_closed(closed: Closed, summary: RunSummary, publish: Callable[[Event], None]) -> None:
    """Write the file, as a whole or not at all, if logs are kept; publish why it could not be."""
    if (logs := summary.logs) is None:
        return
    text = json.dumps(verdict(summary, closed), indent=1) + "\n"
    try:
        bounded(lambda: _write(logs, text), WRITE_MAX_SECONDS)
    except OSError as exc:  # TimeoutError is one
        message = f"{logs}/{VERDICT_FILE} cannot be written: {exc.strerror or exc}"
        publish(Event("output", message, Level.WARNING))


def verdict(summary: RunSummary, closed: Closed) -> dict[str, Any]:
    """Return the contents of the file. An incident has its class, and the name of its explanation."""
    facts, incident = asdict(summary), None
    del facts["logs"]
    failures, of_monitors = facts.pop("failures"), facts.pop("stop_facts")
    if (cause := closed.incident) is not None:
        incident = {**asdict(cause), "kind": cause.kind.value, "class": cause.failure_class.value}
        incident["known_failure"] = incident.pop("explanation")["name"] or None
    found = {
        "success": closed.success,
        "exit_code": int(closed.exit_code),
        "requeue": closed.requeue,
        "why": closed.why,
        **facts,
        "ended_at": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "incident": incident,
        "failures": failures,
    }
    return {**found, **{name: fields for name, fields in of_monitors.items() if name not in found}}


def _write(directory: Path, text: str) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    unnamed = directory / f".{VERDICT_FILE}.{os.urandom(16).hex()}"  # of this node alone: nodes may share pids
    try:
        unnamed.write_text(text, encoding="utf-8")
        os.replace(unnamed, directory / VERDICT_FILE)
    except BaseException:
        with suppress(OSError):
            unnamed.unlink()
        raise
