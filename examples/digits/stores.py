"""The stores of the demo's nodes: for Redis and etcd several servers, so that the leading one can be killed."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE = 60.0
"""Seconds after which a server that does not do its part has failed; they take one or two."""


class StoreFailed(Exception):
    """A server is not installed, or does not do what it should; says what."""


@dataclass(frozen=True, slots=True)
class Store:
    """A place to meet; with servers, one of which leads, if it is more than an address."""

    endpoint: str
    conf: str = ""
    """The settings for ``--rdzv_conf``."""
    title: str = ""
    """The word for the leading server."""
    servers: Mapping[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    """All of them that can lead, by their ports."""
    find_leader: Callable[[], int | None] = lambda: None
    """The port of the one that leads now, as the others know; None while they do not agree on one."""

    def leader(self, *, after: int | None = None) -> int:
        """Return the port of the server that leads, once there is one, and once it is another than ``after``.

        Raises:
            StoreFailed: There is none for a minute.
        """
        deadline = time.monotonic() + PATIENCE
        while (port := self.find_leader()) in (None, after):
            if time.monotonic() >= deadline:
                raise StoreFailed(f"no server became {self.title}")
            time.sleep(0.05)
        assert port is not None
        return port


@contextlib.contextmanager
def store_for(backend: str, folder: Path) -> Iterator[Store]:
    """Yield what a backend needs, for as long as the block runs.

    Raises:
        StoreFailed: It is not installed, or does not start.
    """
    if backend == "redis":
        with redis_under_sentinel(folder) as store:
            yield store
    elif backend == "etcd":
        with etcd_of_three(folder) as store:
            yield store
    else:
        yield Store(f"127.0.0.1:{free_ports(1)[0]}" if backend == "c10d" else str(folder))


@contextlib.contextmanager
def redis_under_sentinel(folder: Path) -> Iterator[Store]:
    """Yield a Redis master, its replica, and a sentinel that makes the replica the master when that is gone."""
    import redis  # only here: whoever runs this demo over another store need not have it

    program = installed("redis-server", "redis-server")
    first, second, watcher = free_ports(3)
    common = ["bind 127.0.0.1", 'save ""']
    settings = {
        first: common,
        second: [*common, f"replicaof 127.0.0.1 {first}", "repl-diskless-sync-delay 0"],
        watcher: [
            "bind 127.0.0.1",
            f"sentinel monitor digits 127.0.0.1 {first} 1",
            "sentinel down-after-milliseconds digits 1000",
            "sentinel failover-timeout digits 10000",
        ],
    }
    with contextlib.ExitStack() as stack:
        servers = {}
        for port, lines in settings.items():
            config = folder / f"redis-{port}.conf"
            config.write_text("\n".join([f"port {port}", f"dir {folder}", f"dbfilename {port}.rdb", *lines]) + "\n")
            command = [program, str(config), *(["--sentinel"] if port == watcher else [])]
            servers[port] = stack.enter_context(server(command, folder))
            until(redis.Redis(port=port, socket_timeout=5).ping, f"the Redis server at port {port} answers")
        replica, sentinel = redis.Redis(port=second), redis.Redis(port=watcher)
        until(lambda: replica.info("replication")["master_link_status"] == "up", "the Redis replica has its data")
        until(lambda: sentinel.execute_command("SENTINEL", "replicas", "digits"), "the sentinel knows the replica")
        del servers[watcher]

        def master() -> int:
            return int(sentinel.execute_command("SENTINEL", "get-master-addr-by-name", "digits")[1])

        yield Store(f"127.0.0.1:{watcher}", "sentinel=digits", "the Redis master", servers, master)


@contextlib.contextmanager
def etcd_of_three(folder: Path) -> Iterator[Store]:
    """Yield three members of one etcd cluster, which go on as long as two of them are there."""
    program = installed("etcd", "etcd-server")
    ports, peers = free_ports(3), free_ports(3)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    peer_urls = [f"http://127.0.0.1:{port}" for port in peers]
    cluster = ",".join(f"{number}={url}" for number, url in enumerate(peer_urls))
    with contextlib.ExitStack() as stack:
        servers = {}
        for number, port in enumerate(ports):
            command = [
                program,
                f"--name={number}",
                f"--data-dir={folder / f'etcd-{number}'}",
                f"--initial-cluster={cluster}",
            ]
            command += [f"--listen-client-urls={urls[number]}", f"--advertise-client-urls={urls[number]}"]
            command += [f"--listen-peer-urls={peer_urls[number]}", f"--initial-advertise-peer-urls={peer_urls[number]}"]
            servers[port] = stack.enter_context(server(command, folder))

        def page(port: int, name: str) -> str:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=2) as got,
            ):
                return str(got.read(), "utf-8")
            return ""

        def leader() -> int | None:
            leads = re.compile("^etcd_server_is_leader 1$", re.M)
            return next((port for port in ports if leads.search(page(port, "metrics"))), None)

        for port in ports:
            until(lambda port=port: '"true"' in page(port, "health"), f"the etcd member at port {port} serves")  # type: ignore[misc]  # B023
        endpoint = ",".join(f"127.0.0.1:{port}" for port in ports)
        yield Store(endpoint, "durable=true", "the leader of the three etcd members", servers, leader)


@contextlib.contextmanager
def server(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a server's process, for as long as the block runs; what it says is in a file."""
    with (folder / "servers.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(happened: Callable[[], object], what: str) -> None:
    """Wait for something of a server that starts.

    Raises:
        StoreFailed: It does not happen.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):  # whatever a client of a server that is not there yet raises
            if happened():
                return
        time.sleep(0.05)
    raise StoreFailed(f"it did not happen that {what}")


def installed(program: str, package: str) -> str:
    """Return the path of a program.

    Raises:
        StoreFailed: It is not here.
    """
    if (found := shutil.which(program)) is None:
        raise StoreFailed(f"{program} is not installed (apt-get install {package})")
    return found


def free_ports(count: int) -> list[int]:
    """Return so many ports without a listener."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
