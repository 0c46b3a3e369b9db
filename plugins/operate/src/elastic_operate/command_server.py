"""The socket over which commands on this host ask an agent for its state, and use its job's store.

A command needs no backend for that, and no secret: the agent has both. Requests and replies are lines of JSON. All is
done on threads that the agent does not wait for.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Any

from elastic_core.errors import ElasticError
from elastic_core.events import Event, Level
from elastic_core.monitors import RunningRound
from elastic_core.rendezvous import Cursor, RendezvousBackend
from elastic_operate.job_file import BYTES, JobFile, directories, keep, renew

if TYPE_CHECKING:
    from elastic_operate.plugin import Course

CLIENTS_MAX = 8  # commands that are served at once
IDLE_MAX_SECONDS = 60.0  # between two requests of a command
WAIT_MAX_SECONDS = 5.0  # of one wait for the store
RETRY_SECONDS = 1.0  # after which connections are accepted again when no descriptor was free
RENEW_AFTER = struct.pack("ll", 60, 0)  # seconds and microseconds without a command, after which the file is renewed
LINGER_SECONDS = 1.0  # for which the end of the agent waits for a command whose request it may be carrying out
REQUEST_MAX_BYTES = 1 << 20


class CommandServer:
    """Keeps the file of an agent, and serves commands, until it is closed.

    Any thread may call ``describe``. ``connect`` is None for a job without a store that others can reach.
    """

    def __init__(
        self,
        file: JobFile,
        describe: Callable[[], str],
        course: Course,
        connect: Callable[[], RendezvousBackend] | None,
        publish: Callable[[Event], None],
        closed: threading.Event,
    ) -> None:
        self._file, self._describe, self._course = file, describe, course
        self._connect, self._publish, self._closed = connect, publish, closed
        self._listener: socket.socket | None = None
        self._free = threading.BoundedSemaphore(CLIENTS_MAX)
        self._requesting: set[threading.Thread] = set()  # the threads whose command has a request in the store

    def run(self) -> None:
        """Keep the file and serve, in the first directory that can be used; the thread's body."""
        while not self._closed.is_set():
            failed = []
            for directory in directories(reading=False):
                try:
                    with keep(self._file, directory, lambda: self._course.end) as self._listener:
                        self._accept(self._listener, directory)
                    break
                except OSError as exc:
                    failed.append(f"{directory}: {exc.strerror or exc}")
            else:
                why = "; ".join(failed)
                message = f"commands on this host do not find this agent, whose file cannot be kept: {why}"
                self._publish(Event("job_file", message, Level.DEBUG))
                return

    def close(self) -> None:
        """End :meth:`run`, which removes the file; a command whose request this agent carries out is served before."""
        deadline = time.monotonic() + LINGER_SECONDS
        for thread in tuple(self._requesting):
            thread.join(max(0.0, deadline - time.monotonic()))
        self._closed.set()
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket, directory: str) -> None:
        """Serve until the server is closed, or the file is gone: a logout or a cleaner of old files has removed it."""
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, RENEW_AFTER)  # shutdown() does not end a poll()
        while not self._closed.is_set():
            try:
                client, _ = listener.accept()
            except BlockingIOError:
                if not renew(directory, self._file):
                    return
                continue
            except OSError:
                self._closed.wait(RETRY_SECONDS)
                continue
            if self._free.acquire(blocking=False):
                try:
                    threading.Thread(target=self._serve, args=(client,), name="elastic-command", daemon=True).start()
                except RuntimeError:
                    self._free.release()
                else:
                    continue
            client.close()

    def _serve(self, client: socket.socket) -> None:
        """Answer the requests of one command."""
        with ExitStack() as stack, suppress(Exception):  # the command is gone, or sends anything else
            stack.callback(self._free.release)
            requests = stack.enter_context(stack.enter_context(client).makefile("rb"))
            _, uid, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid != os.geteuid():
                return
            client.settimeout(IDLE_MAX_SECONDS)
            state, workers = "", None
            with suppress(Exception):  # in the middle of a change
                state = self._describe()
            with suppress(Exception):
                workers = describe_workers(self._course.round)
            _send(client, {"store": self._connect is not None, "state": state, "workers": workers})
            if self._connect is None or not requests.readline(REQUEST_MAX_BYTES):
                return
            try:
                store = stack.enter_context(closing(self._connect()))
                _send(client, {"result": store.embedded})
                entered: set[str] = set()  # the rows of the command's requests
                try:
                    while line := requests.readline(REQUEST_MAX_BYTES):
                        _send(client, {"result": self._perform(store, entered, json.loads(line))})
                finally:
                    self._requesting.discard(threading.current_thread())
                    for node_id in entered:
                        store.remove(node_id)
            except ElasticError as exc:
                _send(client, {"error": type(exc).__name__, "message": exc.message, "hint": exc.hint})

    def _perform(self, store: RendezvousBackend, entered: set[str], request: list[Any]) -> Any:
        """Perform an operation on the store that commands use, and return its result for JSON."""
        match request:
            case ["roster", ids]:
                rows = store.roster(ids)
                return [[r.node_id, r.serial, r.revision, r.value.decode(BYTES), r.heartbeat, r.broken] for r in rows]
            case ["read", index]:
                data = store.read(index)
                return None if data is None else data.decode(BYTES)
            case ["wait", head, version, roster, timeout]:
                found = store.wait(Cursor(head, version), roster=roster, timeout=min(timeout, WAIT_MAX_SECONDS))
                return [found.head, found.roster]
            case ["enter", node_id, value]:
                entered.add(node_id)
                self._requesting.add(threading.current_thread())
                return store.enter(node_id, value.encode(BYTES))
            case ["remove", node_id] if node_id in entered:
                store.remove(node_id)
                entered.remove(node_id)
                self._requesting.discard(threading.current_thread())
                return None
        raise ValueError(request)


def describe_workers(round: RunningRound | None) -> dict[str, Any] | None:
    """Return the number of a round and its workers here: rank, pid, step, and seconds since the last progress."""
    if round is None:
        return None
    progress, workers = round.newest_progress(), []
    for worker in round.workers:
        reached, age = progress.get(worker.rank, (None, None))
        workers.append([worker.rank, worker.pid, None if reached is None else reached.step, age])
    return {"round": round.number, "workers": workers}


def _send(client: socket.socket, reply: dict[str, Any]) -> None:
    client.sendall(json.dumps(reply).encode() + b"\n")
