"""The counters of a run for its last line and ``verdict.json``, and the duration of each interruption on this node.

``verdict.json`` stands beside the logs, for the scripts of schedulers. Nodes that share the directory write the same,
but for ``node``; ``docs/reference/exit_codes.md`` describes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from elastic_core.events import Event, Field, Level, describe_duration
from elastic_core.incidents import Failure, Incident
from elastic_core.protocol.entries import Closed
from elastic_core.threads import bounded

FILE_NAME = "verdict.json"
WRITE_MAX_SECONDS = 5.0
LEAST_FOR_SHARE = 60.0  # seconds of a run from which on its last line has a percentage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The counters of a run, as this node knows them."""

    job: str  # the job's id
    run: str  # the run's own id
    node: str  # the name of this node
    rounds: int
    restarts: int
    max_restarts: int | None
    nodes_lost: int  # how often
    seconds: float  # since the run was opened
    interrupted_seconds: float  # of these, how long the workers of this node did not run between two rounds
    failures: Sequence[Failure] = ()  # the newest that spent a restart, oldest first
    logs: Path | None = None  # None where none are kept
    stop_facts: Mapping[str, Mapping[str, Field]] = field(default_factory=dict)
    """The findings of monitors after the last planned stop, by name."""

    def describe(self) -> str:
        """Return it in one line: ``2 restarts, processes were down for 11.2 s of 3.0 h (up 99.9 %), logs in /logs``."""
        counts = [(self.restarts, "restart"), (self.nodes_lost, "lost node")]
        parts = [f"{count} {what}{'s' if count > 1 else ''}" for count, what in counts if count]
        if self.interrupted_seconds > 0:
            parts.append(f"processes were down for {describe_duration(self.interrupted_seconds)}")
            if self.seconds >= LEAST_FOR_SHARE:
                share = 100 * (1 - min(1.0, self.interrupted_seconds / self.seconds))
                parts[-1] += f" of {describe_duration(self.seconds)} (up {share:.1f} %)"
        if self.logs is not None:
            parts.append(f"logs in {self.logs}")
        return ", ".join(parts)


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


def _write(directory: Path, text: str) -> None:
    unnamed = directory / f".{FILE_NAME}.{uuid.uuid4().hex}"  # of this node alone, also where nodes share process ids
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        unnamed.write_text(text, encoding="utf-8")
        os.replace(unnamed, directory / FILE_NAME)
    except OSError:
        with contextlib.suppress(OSError):
            unnamed.unlink()
        raise


@dataclass(slots=True)
class Recovery:
    """From the first trouble until the workers of the next round train: instants of the monotonic clock, in seconds.

    The parts overlap, since the leader decides while the old workers are being stopped. So each part is reported by its
    end, counted from the beginning.
    """

    began: float  # when the worker ended that failed first; else when this node learned that the round is over
    detected: float  # when this node knew
    decided: float | None = None  # when it read of the next round
    stopped: float | None = None  # when no process of the old round was left
    running: float | None = None  # when the programs of all workers of the next round ran

    def parts(self, **ends: float) -> dict[str, float]:
        """Return the seconds until the end of each part, and until ``ends``."""
        instants = {**asdict(self), **ends}
        began = instants.pop("began")
        return {f"{name}_s": round(at - began, 6) for name, at in instants.items() if at is not None}


@dataclass(slots=True)
class Interruptions:
    """The interruptions of training on this node."""

    current: Recovery | None = None
    seconds: float = 0.0  # how long no workers ran between two rounds, all interruptions together

    def begin(self, now: float, began: float | None = None) -> None:
        """Begin an interruption that is detected now and ``began`` then, by default now; unless one goes on."""
        if self.current is None:
            self.current = Recovery(began=now if began is None else began, detected=now)

    def end(self, now: float) -> Recovery | None:
        """End the interruption, since the workers of the next round run, and return it; None if there was none."""
        recovery, self.current = self.current, None
        if recovery is not None:
            recovery.running = now
            self.seconds += now - recovery.began
        return recovery


def restarted(number: int, recovery: Recovery, fresh: str, unlearned: int = 0) -> Event:
    """Return what the restart cost on this node until the programs of round ``number`` run.

    Args:
        recovery: The interruption that led to it.
        fresh: Why workers started fresh; '' if the starter forked all of them.
        unlearned: How many modules a worker imports itself that the starter has not imported.
    """
    took = round((recovery.running or recovery.began) - recovery.began, 6)
    how = f"its workers import all modules themselves ({fresh})" if fresh else "its workers started warm"
    if unlearned and not fresh:
        how += f", and import {unlearned:,} module(s) themselves"
    message = f"round {number} runs {took:.3f} s after the interruption, and {how}"
    fields: dict[str, Field] = {"round": number, "took_s": took, "warm": not fresh, "why": fresh}
    return Event("restarted", message, fields={**fields, "unlearned": unlearned, **recovery.parts()})


def initialized(number: int, workers: int, took: float, recovery: Recovery | None, now: float) -> Event:
    """Return the event that all local workers of round ``number`` are in the process group.

    They were started ``took`` seconds ago; ``recovery`` is the interruption that led to the round, if one did.
    """
    parts = {} if recovery is None else recovery.parts(initialized=now)
    fields: dict[str, Field] = {"round": number, "workers": workers, "took_s": took, **parts}
    told = ", ".join(f"{name.removesuffix('_s')} after {seconds:.3f}" for name, seconds in parts.items())
    message = f"the process group of round {number} is there: {told or f'after {took:.3f}'} s"
    return Event("initialized", message, Level.DEBUG, fields)
