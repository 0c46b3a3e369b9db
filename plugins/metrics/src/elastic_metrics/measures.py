"""From events to numbers: what Prometheus is told, as one pure function over the events of a node.

A *recovery* lasts from the first sign of trouble on this node (a worker fails, the round is halted, the workers are
fenced off, or, where neither was noticed, the next round comes) until this node's workers of the next round run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from elastic_core.events import Event

CAUSES = ("failure", "node_lost", "node_left", "resize", "store", "unseen")
"""The causes of a new round: the field ``cause`` of the event ``round_started``."""

UNKNOWN = "unknown"  # the cause of a recovery where the agent does not say why the round came

BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the histogram of recoveries, in seconds; one more bucket holds what took longer."""


@dataclass(frozen=True, slots=True)
class Recoveries:
    """A histogram of recovery times: the count in each bucket (not those below), and the sum in seconds."""

    counts: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    total: float = 0.0

    def plus(self, seconds: float) -> Recoveries:
        """Return the histogram with one more recovery."""
        bucket = bisect_left(BUCKETS, seconds)
        counts = (*self.counts[:bucket], self.counts[bucket] + 1, *self.counts[bucket + 1 :])
        return Recoveries(counts, self.total + seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The measures after some events. Numbers are of the newest round, and of the job unless they say *local*."""

    round: int = 0
    nodes: int = 0
    world_size: int = 0
    workers_running: int = 0  # local workers of a round that is well, 0 while there is none
    restarts_spent: int = 0  # of ``--max_restarts``; falls when one is given back
    restarts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    """Rounds after the first that began while this agent was there, by cause."""
    worker_failures: int = 0  # local
    recoveries: Mapping[str, Recoveries] = field(default_factory=lambda: dict.fromkeys(CAUSES, Recoveries()))
    """Local, by the cause of the round that ended them."""
    events: Mapping[tuple[str, str], int] = field(default_factory=dict)  # local, by name and level
    placed: bool = False  # true if this node has a place in the newest round
    cause: str | None = None  # why the newest round came; None for the first
    trouble_at: float | None = None  # when the trouble began from which this node has not recovered yet


def after(measures: Measures, event: Event) -> Measures:
    """Return what is known after one more event. Events and fields that it does not know change nothing but the
    count.
    """
    key = (event.name, event.level.name)
    measures = replace(measures, events={**measures.events, key: measures.events.get(key, 0) + 1})
    match event.name:
        case "worker_failed":
            return _troubled(replace(measures, worker_failures=measures.worker_failures + 1), event.at)
        case "round_halted" | "fenced" | "warden_died":
            return _troubled(measures, event.at)
        case "round_started":
            return _round_started(measures, event)
        case "workers_started":
            return _workers_started(measures, event)
        case "workers_done":
            return replace(measures, workers_running=0)
        case "job_closed" | "left":
            return replace(measures, workers_running=0, placed=False, trouble_at=None)
    return measures


def _troubled(measures: Measures, at: float) -> Measures:
    if not measures.placed:  # a node that only waits has nothing to recover
        return measures
    return replace(measures, workers_running=0, trouble_at=at if measures.trouble_at is None else measures.trouble_at)


def _round_started(measures: Measures, event: Event) -> Measures:
    measures, cause = _troubled(measures, event.at), event.fields.get("cause")
    placed = bool(event.fields.get("member", True))
    restarts = measures.restarts
    if isinstance(cause, str):
        restarts = {**restarts, cause: restarts.get(cause, 0) + 1}
    return replace(
        measures,
        round=_number(event, "round"),
        nodes=_number(event, "nodes"),
        world_size=_number(event, "world_size"),
        restarts_spent=_number(event, "restarts"),
        restarts=restarts,
        cause=cause if isinstance(cause, str) else None,
        placed=placed,
        trouble_at=measures.trouble_at if placed else None,
    )


def _workers_started(measures: Measures, event: Event) -> Measures:
    recoveries = measures.recoveries
    if measures.trouble_at is not None:
        cause, seconds = measures.cause or UNKNOWN, event.at - measures.trouble_at
        recoveries = {**recoveries, cause: recoveries.get(cause, Recoveries()).plus(seconds)}
    return replace(measures, workers_running=_number(event, "workers"), recoveries=recoveries, trouble_at=None)


def _number(event: Event, name: str) -> int:
    value = event.fields.get(name)
    return value if isinstance(value, int) else 0
