"""The plugin that writes ``verdict.json`` beside the logs, for the scripts of schedulers: how the job has ended.

Nodes that share the directory write the same, but for ``node``; ``docs/reference/exit_codes.md`` describes it. All that
this needs is imported before the launch: the environment may be gone when the job ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core import hookimpl
from elastic_core.events import Event, Level
from elastic_core.threads import bounded

if TYPE_CHECKING:
    from elastic_core.incidents import Incident
    from elastic_core.monitors import AgentEnd, RunSummary
    from elastic_core.protocol import Closed

VERDICT_FILE, WRITE_MAX_SECONDS = "verdict.json", 5.0  # for which a disk that does not answer is waited for


@hookimpl(tryfirst=True)  # other plugins may write for minutes, and are killed meanwhile
def elastic_agent_ends(end: AgentEnd) -> None:
    """Write the file, if the job is over and this node had part in it."""
    if end.closed is None or end.summary is None:
        return
    if (error := write_verdict(end.summary, end.closed)) is not None:
        message = f"{end.summary.logs}/{VERDICT_FILE} cannot be written: {error.strerror or error}"
        end.publish(Event("output", message, Level.WARNING))


def write_verdict(summary: RunSummary, closed: Closed, seconds: float = WRITE_MAX_SECONDS) -> OSError | None:
    """Write ``verdict.json`` beside the logs, if any are kept, as a whole or not at all; return why it could not be.

    A disk that does not answer, as that of a dead server, is not waited for longer than ``seconds``.
    """
    if (logs := summary.logs) is None:
        return None
    text = json.dumps(verdict(summary, closed), indent=1) + "\n"
    try:
        bounded(partial(_write, logs, text), seconds)
    except OSError as exc:  # TimeoutError is one
        return exc
    return None


def verdict(summary: RunSummary, closed: Closed) -> dict[str, Any]:
    """Return the contents of ``verdict.json``."""
    facts = asdict(summary)
    del facts["logs"]
    failures, of_monitors = facts.pop("failures"), facts.pop("stop_facts")
    ended_at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    found = {
        "success": closed.success,
        "exit_code": int(closed.exit_code),
        "requeue": closed.requeue,
        "why": closed.why,
        **facts,
        "ended_at": ended_at,
        "incident": None if closed.incident is None else _describe_incident(closed.incident),
        "failures": failures,
    }
    return {**found, **{name: fields for name, fields in of_monitors.items() if name not in found}}


def _describe_incident(incident: Incident) -> Mapping[str, Any]:
    """Return an incident as a record for programs, with its class and the name of its explanation."""
    facts = {**asdict(incident), "kind": incident.kind.value, "class": incident.failure_class.value}
    known = facts.pop("explanation")["name"]
    return {**facts, "known_failure": known or None}


def _write(directory: Path, text: str) -> None:
    unnamed = directory / f".{VERDICT_FILE}.{uuid.uuid4().hex}"  # of this node alone: nodes may share pids
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        unnamed.write_text(text, encoding="utf-8")
        os.replace(unnamed, directory / VERDICT_FILE)
    except OSError:
        with contextlib.suppress(OSError):
            unnamed.unlink()
        raise
