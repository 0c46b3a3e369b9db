"""The plugin ``prometheus``: off until ``ELASTIC_METRICS_PORT`` names a port, then the run's numbers over HTTP.

Agents that share a host get a port each: the one in slot k of its job listens at the port plus k. A port that is taken
costs one warning and the endpoint, never the job: a hook that raises is reported, and its plugin switched off.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core import JoinedRun, hookimpl
from elastic_core.errors import ElasticError, UsageError
from elastic_core.events import Event
from elastic_metrics.measures import Measures, after

if TYPE_CHECKING:
    from elastic_metrics.endpoint import MetricsServer

PORT_VARIABLE = "ELASTIC_METRICS_PORT"
"""The port of a host's first agent; unset, empty or 0: there is no endpoint."""
ADDRESS_VARIABLE = "ELASTIC_METRICS_ADDRESS"  # the address to listen at; only this host reaches the default
LOOPBACK = "127.0.0.1"
LAST_PORT = 65535


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
