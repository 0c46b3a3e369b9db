"""Metadata services on the loopback, which answer as the clouds document it; a test sets what they announce."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "AQAEALTOKEN=="


class Cloud:
    """The state of a service, and what was asked of it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.values: dict[str, str] = {}
        self.asked: list[tuple[str, str]] = []
        self.url = ""

    def announce(self, key: str, value: str) -> None:
        """Have the service answer for a key with this value from now on."""
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def interrupt_aws(self, seconds: float) -> None:
        """Announce that the instance is terminated in so many seconds."""
        at = datetime.fromtimestamp(time.time() + seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.announce("spot/instance-action", json.dumps({"action": "terminate", "time": at}))

    def schedule_azure(self, kind: str, seconds: float, *, machine: str = "vm0") -> None:
        """Announce an event of a machine."""
        at = format_datetime(datetime.fromtimestamp(time.time() + seconds, timezone.utc), usegmt=True)
        event = {
            "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
            "EventType": kind,
            "ResourceType": "VirtualMachine",
            "Resources": [machine],
            "EventStatus": "Scheduled",
            "NotBefore": at,
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
        self.announce("events", json.dumps({"DocumentIncarnation": 1, "Events": [event]}))

    def wait_for_request(self, path: str, count: int = 1, seconds: float = 30.0) -> None:
        """Wait until a path was asked for so many times."""
        with self.changed:
            assert self.changed.wait_for(lambda: sum(one == path for _, one in self.asked) >= count, seconds), (
                self.asked
            )


class _Handler(BaseHTTPRequestHandler):
    cloud: Cloud
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _note(self) -> str:
        path = urlsplit(self.path).path
        with self.cloud.changed:
            self.cloud.asked.append((self.command, path))
            self.cloud.changed.notify_all()
        return path

    def _send(self, status: int, text: str = "", **headers: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        path = self._note()
        wanted = path == "/latest/api/token" and self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        self._send(200, TOKEN) if wanted else self._send(400)

    def do_GET(self) -> None:
        path = self._note()
        if path.startswith("/latest/meta-data/"):
            self._aws(path.removeprefix("/latest/meta-data/"))
        elif path.startswith("/computeMetadata/v1/instance/"):
            self._gcp(path.removeprefix("/computeMetadata/v1/instance/"))
        elif path.startswith("/metadata/"):
            self._azure(path)
        else:
            self._send(404)

    def _aws(self, key: str) -> None:
        if self.headers.get("X-aws-ec2-metadata-token") != TOKEN:
            self._send(401)
        elif (value := self.cloud.values.get(key)) is None:
            self._send(404)
        else:
            self._send(200, value)

    def _gcp(self, key: str) -> None:
        if self.headers.get("Metadata-Flavor") != "Google":
            self._send(403)
            return
        given = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        first = {"preempted": "FALSE", "maintenance-event": "NONE"}.get(key, "")
        if not first and key not in self.cloud.values:
            self._send(503)
            return
        with self.cloud.changed:
            if given.get("wait_for_change") == "true":
                last, seconds = given.get("last_etag"), float(given.get("timeout_sec", 60))
                self.cloud.changed.wait_for(lambda: _etag(self.cloud.values.get(key, first)) != last, min(seconds, 30))
            value = self.cloud.values.get(key, first)
        self._send(200, value, ETag=_etag(value))

    def _azure(self, path: str) -> None:
        if self.headers.get("Metadata") != "true" or "api-version=" not in self.path:
            self._send(400, '{"error": "Bad request. Required metadata header not specified"}')
        elif path == "/metadata/instance/compute/name":
            self._send(200, "vm0")
        elif path == "/metadata/instance/compute/priority":
            self._send(200, self.cloud.values.get("priority", "Spot"))
        else:
            self._send(200, self.cloud.values.get("events", '{"DocumentIncarnation": 0, "Events": []}'))


def _etag(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:16]


@contextmanager
def cloud() -> Iterator[Cloud]:
    """Run a service of all three clouds."""
    state = Cloud()
    handler = type("Handler", (_Handler,), {"cloud": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        with state.changed:
            state.values |= {
                "preempted": "FALSE ",
                "maintenance-event": "NONE ",
            }  # no client waits any more
            state.changed.notify_all()
        server.shutdown()
        server.server_close()
        thread.join()
