"""Real Redis servers and sentinels, started by a test in its own folder and gone with it.

A server keeps its port when it is stopped and started again: ports come from below those that the kernel hands out to
others, and one that is taken is found out by the server itself, which then gets another.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis

from elastic_core.rendezvous.options import RendezvousParameters
from elastic_rdzv_redis import backend
from elastic_rdzv_redis.backend import RedisBackend
from elastic_rdzv_redis.plugin import elastic_make_rendezvous

PATIENCE = 30.0
"""Seconds after which a server counts as not doing what it must."""
HOUR = 3600.0
SERVER = os.environ.get("REDIS_SERVER", "redis-server")
"""The program; another version's, or Valkey's, by the variable of that name."""
PORTS = range(10000, 20000)

_TAKEN = "Address already in use"


class Daemon:
    """A server's process, and what it has said since it was last started.

    Args:
        folder: Where its configuration and its data are.
        settings: Lines of its configuration, less the port, which ``{port}`` stands for.
        sentinel: Whether it is a sentinel.
        address: Where it listens.
        within: What to run it with, such as ``ip netns exec NAME``.
    """

    def __init__(
        self,
        folder: Path,
        settings: Sequence[str],
        *,
        sentinel: bool = False,
        address: str = "127.0.0.1",
        within: Sequence[str] = (),
    ) -> None:
        self.folder, self.settings, self.sentinel = folder, settings, sentinel
        self.address, self.within = address, within
        self.port = 0
        self.process: subprocess.Popen[str] | None = None
        self._said: list[str] = []
        self._changed = threading.Condition()
        self._listener = threading.Thread()
        folder.mkdir(parents=True)

    @property
    def endpoint(self) -> str:
        """As ``--rdzv_endpoint`` takes it."""
        return f"{self.address}:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        ready = "Sentinel ID is" if self.sentinel else "Ready to accept connections"
        for port in [self.port] if self.port else random.sample(PORTS, 100):
            self.port = port
            self._launch()
            if self.wait_for_log(f"{ready}|{_TAKEN}") != _TAKEN:
                return
            self.stop()
        raise AssertionError(f"no port for a server; the last one, {self.port}, is taken")

    def _launch(self) -> None:
        path = self.folder / "server.conf"
        if not (self.sentinel and path.exists()):  # which a sentinel rewrites, and believes
            lines = [f"bind {self.address}", f"dir {self.folder}", "daemonize no", 'logfile ""', *self.settings]
            path.write_text("\n".join(lines).replace("{port}", str(self.port)) + "\n")
        self._said = []
        command = [*self.within, SERVER, str(path), *(["--sentinel"] if self.sentinel else [])]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._listener = threading.Thread(target=self._listen, args=(self.process,), daemon=True)
        self._listener.start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                with self._changed:
                    self._said.append(line)
                    self._changed.notify_all()

    def wait_for_log(self, pattern: str, *, count: int = 1) -> str:
        """Wait until it has said something like this so many times; what it said."""

        def found() -> list[str]:
            return [match[0] for line in self._said if (match := re.search(pattern, line))]

        with self._changed:
            self._changed.wait_for(lambda: len(found()) >= count, PATIENCE)
        assert len(found()) >= count, f"the server at port {self.port} did not say {pattern!r}:\n{''.join(self._said)}"
        return found()[count - 1]

    def stop(self) -> None:
        """End it, as its host's shutdown would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._end(signal.SIGKILL)

    @property
    def data(self) -> list[Path]:
        """The files and directories with its data; Redis 6 has one file where later ones have a directory."""
        names = ("appendonlydir", "appendonly.aof", "dump.rdb")
        return [self.folder / name for name in names if (self.folder / name).exists()]

    def forget(self) -> None:
        """Delete its data, while it does not run."""
        for path in self.data:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def replicated(self) -> None:
        """Wait until its replica has all that has been written so far."""
        with redis.Redis(port=self.port) as admin:
            admin.set("replicated", 1)  # WAIT is for the writes of its own connection, which come after all others
            assert admin.wait(1, int(PATIENCE * 1000)) == 1

    def freeze(self) -> None:
        """Keep its connections open without an answer."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)  # until then some of its threads may go on

    def _end(self, signum: int) -> None:
        if self.process is not None:
            self.process.send_signal(signum)
            self.process.wait(PATIENCE)
            self._listener.join(PATIENCE)
            self.process = None


def opened(endpoint: str, run_id: str = "job", **config: str) -> RedisBackend:
    """Open a connection as an agent does; picklable, for other processes."""
    parameters = RendezvousParameters(
        backend="redis", endpoint=endpoint, run_id=run_id, min_nodes=1, max_nodes=2, config=config
    )
    return elastic_make_rendezvous(parameters)


def opened_in_silence(endpoint: str, run_id: str = "job") -> RedisBackend:
    """Open a connection, in a fresh process, whose waiters look again only when notified: a lost bell is missed."""
    backend.LONGEST_SLEEP = HOUR
    return opened(endpoint, run_id)


@contextmanager
def redis_server(folder: Path, *settings: str, durable: bool = False) -> Iterator[Daemon]:
    """Start a server; ``durable`` if it has its data again when it is started anew."""
    kept = ["appendonly yes", "appendfsync always"] if durable else ["appendonly no"]
    port = [] if any(line.startswith(("port", "tls-port")) for line in settings) else ["port {port}"]
    server = Daemon(folder, ['save ""', *kept, *port, *settings])
    with running(server):
        yield server


@contextmanager
def running(*servers: Daemon) -> Iterator[None]:
    """Start them, one after the other; none is left."""
    try:
        for server in servers:
            server.start()
        yield
    finally:
        for server in servers:
            server.kill()


@contextmanager
def sentinel_set(folder: Path) -> Iterator[tuple[Daemon, Daemon, Daemon]]:
    """Start a master, its replica, and a sentinel that makes the replica a master when the first one is gone."""
    with redis_server(folder / "master") as master:
        follow = f"replicaof 127.0.0.1 {master.port}"
        with redis_server(folder / "replica", follow, "repl-diskless-sync-delay 0") as replica:
            replica.wait_for_log("<-> REPLICA sync: Finished")
            watch = [
                "port {port}",
                f"sentinel monitor mymaster 127.0.0.1 {master.port} 1",
                "sentinel down-after-milliseconds mymaster 500",
                "sentinel failover-timeout mymaster 5000",
            ]
            sentinel = Daemon(folder / "sentinel", watch, sentinel=True)
            with running(sentinel):
                sentinel.wait_for_log(r"\+slave")
                yield master, replica, sentinel


def openssl(*arguments: str) -> None:
    """Run openssl."""
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def authority(folder: Path, name: str) -> Path:
    """Make a certificate authority; return the file with its certificate; its key is in ``NAME.key`` beside it."""
    made = folder / f"{name}.crt"
    subject = ["-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign"]
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            *subject, "-keyout", str(made.with_suffix(".key")), "-out", str(made))  # fmt: skip
    return made


def certificate(folder: Path, name: str, ca: Path, *, alternative: str = "IP:127.0.0.1") -> Path:
    """Make a certificate that ``ca`` has signed; its key is in ``NAME.key`` beside it."""
    made, request, extensions = (folder / f"{name}.{kind}" for kind in ("crt", "csr", "ext"))
    extensions.write_text(f"subjectAltName={alternative}\n")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", str(made.with_suffix(".key")), "-out", str(request))  # fmt: skip
    openssl("x509", "-req", "-in", str(request), "-CA", str(ca), "-CAkey", str(ca.with_suffix(".key")),
            "-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", str(made))  # fmt: skip
    return made
