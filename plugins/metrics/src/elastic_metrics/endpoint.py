"""The numbers in Prometheus's words, over HTTP. This module imports ``prometheus_client``, and nothing else does.

The server waits without polling, looks up no names, and gives each request a thread of its own with a time limit, so
that a client that stalls holds up no other.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from elastic_metrics.prometheus import BUCKETS, Measures

REQUEST_TIMEOUT = 10.0  # seconds that a client may take over its request
RETRY_AFTER = 1.0
"""Seconds to wait after a connection could not be taken, mostly because the process has no descriptor left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose numbers they are."""

    job: str
    run: str
    node: str
    role: str
    restarts_allowed: float  # infinite without a limit


def families(who: Identity, now: Measures) -> Iterator[Metric]:
    """Yield all metrics, with their help; ``README.md`` lists them."""
    labels = {"job_id": who.job, "run": who.run, "node": who.node, "role": who.role}
    yield InfoMetricFamily("elastic_run", "The run that this agent is in, and the agent's name there.", labels)
    gauges = {
        "elastic_round": ("Number of the newest round.", now.round),
        "elastic_nodes": ("Nodes in the newest round.", now.nodes),
        "elastic_world_size": ("Workers in the newest round, on all nodes.", now.world_size),
        "elastic_workers_running": ("Local workers of a round that is well.", now.workers_running),
        "elastic_restarts_spent": ("Restarts spent by the job.", now.restarts_spent),
        "elastic_restarts_allowed": ("The job's --max_restarts.", who.restarts_allowed),
    }
    for name, (help, value) in gauges.items():
        yield GaugeMetricFamily(name, help, value)
    yield CounterMetricFamily("elastic_worker_failures", "Local workers that failed first.", now.worker_failures)

    restarts = CounterMetricFamily("elastic_restarts", "Rounds after the first, by cause.", labels=["cause"])
    for cause, count in now.restarts.items():
        restarts.add_metric([cause], count)
    yield restarts

    recovery = HistogramMetricFamily(
        "elastic_recovery_seconds", "From the first trouble here until the next round's workers run.", labels=["cause"]
    )
    for cause, recoveries in now.recoveries.items():
        # Each bound with the count of recoveries at or below it, as Prometheus counts.
        buckets = list(zip([*map(str, BUCKETS), "+Inf"], accumulate(recoveries.counts), strict=True))
        recovery.add_metric([cause], buckets, recoveries.total)
    yield recovery

    events = CounterMetricFamily("elastic_events", "Events of this agent.", labels=["event", "level"])
    for (event, level), count in now.events.items():
        events.add_metric([event, level.lower()], count)
    yield events


class MetricsServer:
    """An HTTP server in a daemon thread.

    It answers with what ``measures`` returns at the time.

    Raises:
        OSError: The port is taken, or the address is not this host's.
    """

    def __init__(self, address: str, port: int, who: Identity, measures: Callable[[], Measures]) -> None:
        registry = CollectorRegistry()  # one of our own: the default one tells of Python's garbage collector
        registry.register(_Reader(who, measures))
        self._server = (_Server6 if ":" in address else _Server)((address, port), _Handler)
        self._server.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self._serve, name="metrics endpoint", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port of the listener."""
        return self._server.server_port

    def close(self) -> None:
        """Listen no more; the port is free afterwards."""
        self._server.closing.set()
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._server.server_close()

    def _serve(self) -> None:
        while not self._server.closing.is_set():
            self._server.handle_request()  # serve_forever would look twice a second whether it is to stop


class _Reader(Collector):
    def __init__(self, who: Identity, measures: Callable[[], Measures]) -> None:
        self._who, self._measures = who, measures

    def collect(self) -> Iterator[Metric]:
        return families(self._who, self._measures())


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the agent's stderr is the user's."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.closing = threading.Event()
        super().__init__(address, handler)

    def get_request(self) -> tuple[Any, Any]:
        """Take a connection; pause after a failure, since the server would try again at once."""
        try:
            return super().get_request()
        except OSError:
            self.closing.wait(RETRY_AFTER)
            raise

    def server_bind(self) -> None:
        """Bind the socket without asking the resolver for the host's full name, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.socket.getsockname()[:2]
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a client may hang up."""


class _Server6(_Server):
    address_family = socket.AF_INET6
