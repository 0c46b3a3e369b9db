"""The plugin ``prometheus``: off until ``ELASTIC_METRICS_PORT`` names a port, then the run's numbers over HTTP.

The numbers are one pure function over the events of a node (:func:`after`). A *recovery* lasts from the first sign of
trouble on this node (a worker fails, the round is halted, the workers are fenced off, or, where neither was noticed,
the next round comes) until this node's workers of the next round run.

Agents that share a host get a port each: the one in slot k of its job listens at the port plus k. A port that is taken
costs one warning and the endpoint, never the job: a hook that raises is reported, and its plugin switched off.
"""

from __future__ import annotations

import math
import os
import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from elastic_core import JoinedRun, hookimpl
from elastic_core.errors import ElasticError, UsageError
from elastic_core.events import Event

if TYPE_CHECKING:
    from elastic_metrics.endpoint import MetricsServer

PORT_VARIABLE = "ELASTIC_METRICS_PORT"
"""The port of a host's first agent; unset, empty or 0: there is no endpoint."""
ADDRESS_VARIABLE = "ELASTIC_METRICS_ADDRESS"  # the address to listen at; only this host reaches the default
LOOPBACK = "127.0.0.1"
LAST_PORT = 65535

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


class EndpointError(ElasticError):
    """The endpoint could not be opened. Elastic reports it and switches the plugin off."""


@dataclass(frozen=True, slots=True)
class Place:
    """The address to listen at, as the environment sets it."""

    address: str
    port: int

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Place | None:
        """Return the place, or None where no endpoint is asked for; raise UsageError if the port is none."""
        text = environ.get(PORT_VARIABLE, "").strip() or "0"
        if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > LAST_PORT:
            raise UsageError(
                f"{PORT_VARIABLE}={text!r} is not a port.", hint=f"Give a number up to {LAST_PORT}; 0 for no endpoint."
            )
        address = environ.get(ADDRESS_VARIABLE, "").strip() or LOOPBACK
        return cls(address, int(text)) if int(text) else None

    def of_slot(self, slot: int) -> Place:
        """Return the address at which the agent in this slot of its host listens.

        Raises:
            EndpointError: There are no more ports.
        """
        if self.port + slot > LAST_PORT:
            raise EndpointError(
                f"{PORT_VARIABLE}={self.port} leaves no port to agent {slot + 1} of this host.",
                hint="Choose a lower one.",
            )
        return Place(self.address, self.port + slot)

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


class Prometheus:
    """Keeps the numbers, where an endpoint is asked for, and answers for them.

    Raises:
        UsageError: A setting is wrong.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._place = Place.read(environ)
        self._measures = Measures()
        self._endpoint: MetricsServer | None = None

    @hookimpl
    def elastic_run_starts(self, run: JoinedRun) -> None:
        """Open the endpoint, if one is asked for; raise EndpointError if it cannot be opened."""
        self.elastic_run_ends()  # the agent may have entered the job again, as another node
        if self._place is None:
            return
        from elastic_metrics.endpoint import Identity, MetricsServer  # imports prometheus_client

        config, node = run.config, run.node
        place = self._place.of_slot(node.slot)
        allowed = math.inf if config.max_restarts is None else config.max_restarts
        who = Identity(job=config.rdzv_id, run=run.run_uid, node=str(node), role=node.role, restarts_allowed=allowed)
        try:
            self._endpoint = MetricsServer(place.address, place.port, who, lambda: self._measures)
        except OSError as exc:
            raise EndpointError(
                f"There are no metrics at {place}: {exc.strerror or exc}.",
                hint=f"Choose another {PORT_VARIABLE}; agents of one job on one host take the ports after it.",
            ) from exc

    @hookimpl
    def elastic_observe(self, event: Event) -> None:
        """Take note of the event."""
        if self._place is not None:
            self._measures = after(self._measures, event)

    @hookimpl
    def elastic_run_ends(self) -> None:
        """Close the endpoint: a process may have a run after this one."""
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None
