"""The plugin ``trainjob``: a TrainJob shows the progress that this agent reads from its workers' output.

Kubeflow Trainer (KEP-2779, feature gate ``TrainJobStatus``) gives each container of a TrainJob three variables: the URL
that takes the status, the file of the authority that signed its certificate, and the file of a token that is replaced
every hour. Without them the plugin observes nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from elastic_core import JoinedRun, hookimpl
from elastic_core.errors import ElasticError, UsageError, in_one_line
from elastic_core.events import Event
from elastic_core.monitors import RunningRound

URL, CA_CERT, TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))
STEPS = "ELASTIC_TRAINJOB_STEPS"

TIMEOUT_SECONDS = 3.0  # for each wait of a request: to connect, to send, for the answer
INTERVAL_SECONDS = 5.0  # between two reports, as Kubeflow's own client keeps it
PAUSE_SECONDS = 30.0  # without any report after one that failed
ANSWER_BYTES = 10_000  # of an answer, at most
METRIC_LENGTH = 64  # characters of a metric's value, at most, by the CRD
MOST_SECONDS = 2**31 - 1  # of a remaining time, at most, by the CRD


@dataclass(frozen=True, slots=True)
class Server:
    """The server that takes a TrainJob's status."""

    url: str
    ca_cert: Path
    token: Path

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Server | None:
        """Return what Kubeflow Trainer has set; None where it has not."""
        url, ca_cert, token = (environ.get(name, "").strip() for name in (URL, CA_CERT, TOKEN))
        return cls(url, Path(ca_cert), Path(token)) if url and ca_cert and token else None

    def post(self, status: Mapping[str, Any]) -> None:
        """Send a status; redirects are not followed, and no proxy is asked: the token is for this server alone.

        Raises:
            OSError: The server cannot be reached, is not to be trusted, or a file cannot be read.
            HTTPException: The answer is not HTTP.
            StatusRefusedError: The server did not take the status.
            UsageError: The URL is not one of https.
            ValueError: The token is not ASCII.
        """
        import ssl  # only where there is a server
        from http.client import HTTPSConnection

        where = urlsplit(self.url)
        if where.scheme != "https" or not where.hostname:
            raise UsageError(f"{URL} {self.url!r} is not a URL that begins with https://.")
        context = ssl.create_default_context(cafile=str(self.ca_cert))  # read again each time: it is replaced, too
        token = self.token.read_text(encoding="ascii").strip()
        connection = HTTPSConnection(where.hostname, where.port, timeout=TIMEOUT_SECONDS, context=context)
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            path = where.path + (f"?{where.query}" if where.query else "")
            connection.request("POST", path or "/", json.dumps({"trainerStatus": status}), headers)
            answer = connection.getresponse()
            text = answer.read(ANSWER_BYTES)
        finally:
            connection.close()
        if answer.status != 200:
            raise StatusRefusedError(answer.status, text)


class StatusRefusedError(ElasticError):
    """The server answered with an error, in the form of Kubernetes: JSON with ``message``."""

    def __init__(self, code: int, answer: bytes) -> None:
        try:
            message = str(json.loads(answer)["message"])
        except (ValueError, KeyError, TypeError):
            message = answer.decode(errors="replace")
        super().__init__(f"the server answers {code}: {' '.join(message.split())[:200].rstrip('.') or 'nothing else'}.")


@dataclass(frozen=True, slots=True)
class Training:
    """The known state of a training. Pure: events change it, and a status shows it."""

    steps: int | None = None  # of the whole training; None if that is not known
    step: int | None = None
    steps_per_s: float | None = None
    metrics: Mapping[str, object] = field(default_factory=dict)  # the others, by name
    succeeded: bool = False

    def after(self, event: Event) -> Training:
        """Return what is known after an event."""
        fields = event.fields
        if event.name == "progress":
            step, rate = fields.get("step"), fields.get("steps_per_s")
            metrics = {name: fields.get(name) for name in ("loss", "epoch", "samples")}
            return replace(
                self,
                step=step if isinstance(step, int) else self.step,
                steps_per_s=rate if isinstance(rate, (int, float)) else self.steps_per_s,
                metrics={**self.metrics, **{name: value for name, value in metrics.items() if value is not None}},
            )
        if event.name == "round_started":
            counts = {"nodes": fields.get("nodes"), "workers": fields.get("world_size")}
            return replace(self, metrics={**self.metrics, **counts, "restarts": fields.get("restarts")})
        if event.name == "job_closed":
            return replace(self, succeeded=fields.get("success") is True)
        return self

    def status(self, at: float) -> dict[str, Any]:
        """Return the TrainJob's ``status.trainerStatus`` at this time, in seconds since the epoch."""
        status: dict[str, Any] = {}
        if self.succeeded:
            status |= {"progressPercentage": 100, "estimatedRemainingSeconds": 0}
        elif self.steps is not None and self.step is not None:
            left = max(0, self.steps - self.step)
            status["progressPercentage"] = max(0, min(99 if left else 100, 100 * self.step // self.steps))
            if self.steps_per_s is not None and self.steps_per_s > 0:
                status["estimatedRemainingSeconds"] = min(MOST_SECONDS, round(left / self.steps_per_s))
        known = {"step": self.step, "steps_per_s": self.steps_per_s, **self.metrics}
        status["metrics"] = [
            {"name": name, "value": str(value)[:METRIC_LENGTH]} for name, value in known.items() if value is not None
        ]
        status["lastUpdatedTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
        return status


class TrainJobStatus:
    """Reports the progress of the whole job, from the node that has rank 0.

    Raises:
        UsageError: ``ELASTIC_TRAINJOB_STEPS`` is not a number of steps.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._server = Server.read(environ)
        self._monotonic, self._wall = monotonic, wall
        self._training = Training(steps=_steps(environ.get(STEPS, "")) if self._server else None)
        self._node_id = ""
        self._reports = False  # whether this node has rank 0
        self._next = 0.0  # when the next report may be sent
        self._due = False  # whether the last status that was known has not been sent
        self._failed = False  # whether the last report failed, of which people have been told

    @hookimpl
    def elastic_run_starts(self, run: JoinedRun) -> None:
        """Note which node this is."""
        self._node_id = run.node.node_id

    @hookimpl
    def elastic_round_starts(self, round: RunningRound) -> None:
        """Note whether this node has rank 0."""
        self._reports = [*round.members[:1]] == [self._node_id]

    @hookimpl
    def elastic_observe(self, event: Event) -> None:
        """Send what an event says of the training, unless it is too soon for another report."""
        if self._server is None:
            return
        before, self._training = self._training, self._training.after(event)
        self._due = self._due or self._training != before
        if not (self._due and self._reports):
            return
        final = event.name == "job_closed" and not self._failed  # the last one, which is worth a wait of some seconds
        if final or self._monotonic() >= self._next:
            self._send(self._server)

    def _send(self, server: Server) -> None:
        from http.client import HTTPException

        self._due = False
        try:
            server.post(self._training.status(self._wall()))
        except (OSError, HTTPException, ElasticError, ValueError) as exc:
            self._next = self._monotonic() + PAUSE_SECONDS
            if not self._failed:
                self._say(f"the TrainJob's progress is not shown: {in_one_line(exc)} The training goes on.")
            self._failed = True
        else:
            self._next = self._monotonic() + INTERVAL_SECONDS
            if self._failed:
                self._say("the TrainJob's progress is shown again.")
            self._failed = False

    @staticmethod
    def _say(message: str) -> None:
        print(f"elastic: warning: {message}", file=sys.stderr, flush=True)


def _steps(text: str) -> int | None:
    """Return the number of steps of the whole training; None where the text is empty."""
    if not text.strip():
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise UsageError(f"{STEPS}={text!r} is not a number of steps.", hint="Give a whole number of at least 1.")
    return int(text)
