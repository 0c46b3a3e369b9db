"""Real etcd servers, alone or three together, with certificates and users if wished; nothing is left of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

PATIENCE = 60.0
"""Seconds after which a test gives up on a server; one second is usual."""


@dataclass
class Etcd:
    """One server: the same ports and the same folder for as long as the object lives, however often it is started."""

    folder: Path
    name: str = "alone"
    cluster: str = ""
    """As ``--initial-cluster`` has it; '' for a server of its own."""
    flags: Sequence[str] = ()
    port: int = 0
    tls: bool = False
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()

    @property
    def endpoint(self) -> str:
        """The endpoint for clients."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> Etcd:
        """Start it; see :meth:`serving` for when it serves."""
        scheme = "https" if self.tls else "http"
        clients, peer = f"{scheme}://{self.endpoint}", f"unix://{self.name}:1"
        command = ["setpriv", "--pdeathsig", "KILL", "--", "etcd", f"--name={self.name}", f"--data-dir={self.data}"]
        command += ["--logger=zap", "--log-level=error", *self.flags]
        command += [f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}"]
        command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        command += [f"--initial-cluster={self.cluster or f'{self.name}={peer}'}"]
        if _knows("--enable-v2"):  # 3.6 does not any more
            command += ["--enable-v2"] if "--enable-v2=false" not in self.flags else []
        (self.folder / f"{self.name}:1").unlink(missing_ok=True)
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return self

    @property
    def data(self) -> Path:
        """The directory of its data."""
        return self.folder / f"{self.name}.data"

    def serving(self) -> Etcd:
        """Wait until it is one of a cluster that has a leader."""
        deadline = time.monotonic() + PATIENCE
        while not self._healthy():
            assert self.process is not None
            assert self.process.poll() is None, f"etcd ended:\n{self._log()}"
            assert time.monotonic() < deadline, f"etcd does not serve:\n{self._log()}"
            time.sleep(0.02)
        return self

    def _healthy(self) -> bool:
        if self.tls:  # health needs a certificate too; that it listens is enough for a server of its own
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                return True
            return False
        return b'"true"' in self._page("health")

    def _page(self, name: str) -> bytes:
        """One of the pages that every member serves; nothing where it does not now."""
        try:
            with urllib.request.urlopen(f"http://{self.endpoint}/{name}", timeout=2) as answer:
                return bytes(answer.read())
        except OSError:  # urllib's own errors among them
            return b""

    def _log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text(errors="replace")

    @property
    def pid(self) -> int:
        """Its process."""
        assert self.process is not None
        return self.process.pid

    def stop(self) -> None:
        """Kill it; its data stay."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def forget(self) -> None:
        """Delete what a stopped one has kept."""
        shutil.rmtree(self.data)

    def leads(self) -> bool:
        """Return True if it is its cluster's leader."""
        return re.search(rb"^etcd_server_is_leader 1$", self._page("metrics"), re.M) is not None

    def operations(self) -> dict[str, int]:
        """Return the count of each method of gRPC since the start, by name; the gateway's calls are included."""
        text = self._page("metrics").decode()
        ours = r'^grpc_server_started_total\{grpc_method="(\w+)",grpc_service="etcdserverpb\.\w+".*\} (\d+)'
        found = re.findall(ours, text, re.M)  # health, which is gRPC's own, has a method Watch too
        return {method: int(count) for method, count in found}


@dataclass
class Three:
    """A cluster of three."""

    folder: Path
    members: list[Etcd] = field(default_factory=list)

    def start(self) -> Three:
        """Start them, and wait until all serve."""
        names = ["one", "two", "three"]
        cluster = ",".join(f"{name}=unix://{name}:1" for name in names)
        self.members = [Etcd(self.folder, name, cluster).start() for name in names]
        for member in self.members:
            member.serving()
        return self

    @property
    def endpoint(self) -> str:
        """All of them."""
        return ",".join(member.endpoint for member in self.members)

    def leader(self) -> Etcd:
        """The one that leads, once one does."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for member in self.members:
                if member.process is not None and member.leads():
                    return member
            time.sleep(0.05)
        raise AssertionError("none of the three leads")

    def stop(self) -> None:
        """Kill all."""
        for member in self.members:
            member.stop()


@contextlib.contextmanager
def running(folder: Path, **settings: object) -> Iterator[Etcd]:
    """A server for as long as the block runs."""
    server = Etcd(folder, **settings)  # type: ignore[arg-type]  # a test says what it means
    try:
        yield server.start().serving()
    finally:
        server.stop()


def administer(
    server: Etcd, path: str, body: Mapping[str, object], *, method: str = "POST", authorization: str = ""
) -> None:
    """Ask a server over its JSON gateway, or API v2, to change something; fails if it does not."""
    request = urllib.request.Request(f"http://{server.endpoint}{path}", json.dumps(body).encode(), method=method)
    request.add_header("Content-Type", "application/json")
    if authorization:
        request.add_header("Authorization", authorization)
    urllib.request.urlopen(request, timeout=PATIENCE).close()


def asked(server: Etcd, path: str, body: Mapping[str, object]) -> dict[str, Any]:
    """Return a server's answer over its JSON gateway."""
    with urllib.request.urlopen(f"http://{server.endpoint}{path}", json.dumps(body).encode(), PATIENCE) as answer:
        said: dict[str, Any] = json.load(answer)
        return said


@cache
def _knows(flag: str) -> bool:
    return flag in subprocess.run(["etcd", "--help"], capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def refusing_port() -> Iterator[int]:
    """A port at which connections are refused: no other process can take it for as long as the block runs."""
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        yield port


def free_port() -> int:
    """A port of this host without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
