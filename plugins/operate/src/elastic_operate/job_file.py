"""The files by which commands on this host find the agents of this user, and the socket beside each file.

They are in ``$XDG_RUNTIME_DIR/elastic``, or in ``elastic-UID`` in the directory for temporary files. A directory that
is not this user's, or that other users can write to, is not used. Sockets are reached through the directory's
descriptor, since the name of a socket has 107 bytes at most.

Over its socket an agent tells its state, and lends its job's store: so a command needs no backend, and no secret.
Requests and replies are lines of JSON. The agent does all of it on threads for which it does not wait.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.config import RunConfig
from elastic_core.errors import ElasticError, without_passwords
from elastic_core.events import Event, Level
from elastic_core.host import boot_id, running_process
from elastic_core.monitors import RunningRound
from elastic_core.protocol import reader, writer
from elastic_core.rendezvous import Cursor, RendezvousBackend

if TYPE_CHECKING:
    from elastic_operate.plugin import Course

SUFFIX, SOCKET_SUFFIX = ".json", ".sock"
LAST, LAST_LOGS = "last", "last-logs"  # the files of the agent that has ended last, and of the last that kept logs
BYTES = "latin-1"  # the encoding by which bytes are texts in the JSON that the socket takes
OLD_SECONDS = 86400.0  # after which a file is removed that is of another boot or release, and that no agent renews
_MAX_BYTES = 1 << 16


CLIENTS_MAX = 8  # commands that are served at once
IDLE_MAX_SECONDS = 60.0  # between two requests of a command
WAIT_MAX_SECONDS = 5.0  # of one wait for the store
RETRY_SECONDS = 1.0  # after which connections are accepted again when no descriptor was free
RENEW_AFTER = struct.pack("ll", 60, 0)  # seconds and microseconds without a command, after which the file is renewed
LINGER_SECONDS = 1.0  # for which the end of the agent waits for a command whose request it may be carrying out
REQUEST_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile:
    """The facts about one agent that its file holds."""

    job: str  # the job's id
    run: str  # the run's own id
    node: str  # the agent's node id, from which its file and its socket have their names
    backend: str  # the rendezvous backend
    endpoint: str  # the endpoint, without passwords
    logs: str  # the run's directory for logs; '' if they are not kept
    pid: int  # the agent's process
    started: int  # the start of that process, in ticks since the boot
    kernel: str  # the boot and the PID namespace in which ``pid`` and ``started`` have a meaning
    ended: float = 0.0  # when the agent ended, in seconds since 1970; 0 while it runs, and if it was killed
    end: str = ""  # how it ended; '' while it runs, and if it was killed
    directory: str = ""  # the directory that holds the file; not written

    @property
    def is_stale(self) -> bool:
        """True if its agent is known to be gone."""
        return self.kernel == kernel() and running_process(self.pid) != (self.pid, self.started)


def describe_agent(config: RunConfig, run: str, node: str, logs: Path | None) -> JobFile:
    """Return the facts about the agent that this process is."""
    process = running_process(os.getpid())
    return JobFile(
        job=config.rdzv_id,
        run=run,
        node=node,
        backend=config.rdzv_backend,
        endpoint=without_passwords(config.rdzv_endpoint),
        logs="" if logs is None else os.path.abspath(logs),
        pid=os.getpid(),
        started=0 if process is None else process[1],
        kernel=kernel(),
    )


def kernel() -> str:
    """Return what identifies this boot and this PID namespace."""
    return f"{boot_id()} {os.stat('/proc/self/ns/pid').st_ino}"


def directories(*, reading: bool = True) -> list[str]:
    """Return where files may be: where agents of this user with the same variables write them, the preferred first."""
    uid = os.geteuid()
    runtime = os.environ.get("XDG_RUNTIME_DIR") or (f"/run/user/{uid}" if reading else "")
    with suppress(OSError):
        if runtime and os.stat(runtime).st_uid == uid:
            return [f"{runtime}/elastic", f"{os.environ.get('TMPDIR') or '/tmp'}/elastic-{uid}"]
    return [f"{os.environ.get('TMPDIR') or '/tmp'}/elastic-{uid}"]


@contextmanager
def open_directory(directory: str) -> Iterator[str]:
    """Yield a short path by which a directory of files is reached while the block runs.

    Raises:
        OSError: It is not there, belongs to another user, or others can write to it.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{directory} is not only this user's")
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextmanager
def keep(file: JobFile, directory: str, end: Callable[[], str] = str) -> Iterator[socket.socket]:
    """Keep a file in a directory while the block runs, and yield the socket beside it, which listens.

    ``end`` returns how the agent has ended; by default ''.

    Raises:
        OSError: The directory cannot be used, or is full.
    """
    with suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    with open_directory(directory) as place, socket.socket(socket.AF_UNIX) as listener:
        name = f"{place}/{file.node}"
        try:
            listener.bind(name + SOCKET_SUFFIX)
            listener.listen()
            _write(place, file, file.node + SUFFIX)
            yield listener
        finally:
            renew(place, file)
            _retire(place, replace(file, ended=time.time(), end=end()))


def _write(place: str, file: JobFile, name: str) -> None:
    """Write a file under a name, whole or not at all."""
    new = f"{place}/{file.node}.new"
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            json.dump(writer(JobFile)(file), out)
        os.rename(new, f"{place}/{name}")
    finally:
        with suppress(OSError):
            os.unlink(new)


def renew(directory: str, file: JobFile) -> bool:
    """Set the times of a file and its socket to now, which says that they are in use; False if one of them is gone."""
    with suppress(OSError):
        for suffix in (SUFFIX, SOCKET_SUFFIX):
            os.utime(f"{directory}/{file.node}{suffix}", follow_symlinks=False)
        return True
    return False


def _retire(place: str, file: JobFile) -> None:
    """Remove a file and its socket. It becomes the last one, and of those with logs, unless that was in use later."""
    name = f"{place}/{file.node}"
    with suppress(OSError):
        os.unlink(name + SOCKET_SUFFIX)
    with suppress(OSError):
        used_at = os.path.getmtime(name + SUFFIX)
        for last in (LAST_LOGS, LAST) if file.logs else (LAST,):
            path = f"{place}/{last}"
            if os.path.exists(path) and os.path.getmtime(path) > used_at:
                continue
            try:
                _write(place, file, last)
                os.utime(path, (used_at, used_at))
            except OSError:  # a full disk: the file as it is needs no room
                os.rename(name + SUFFIX, path)
                return
        os.unlink(name + SUFFIX)


def _remove_old(place: str, name: str) -> None:
    """Remove a file and its socket if no agent has renewed them for a day."""
    with suppress(OSError):
        if time.time() - os.lstat(f"{place}/{name}").st_mtime > OLD_SECONDS:
            os.unlink(f"{place}/{name}")
            os.unlink(f"{place}/{name.removesuffix(SUFFIX)}{SOCKET_SUFFIX}")


def read_all() -> list[JobFile]:
    """Return the files of this user's agents on this host, in the order of their start; stale ones are removed."""
    found = []
    for directory in directories():
        with suppress(OSError), open_directory(directory) as place:
            for name in filter(lambda name: name.endswith(SUFFIX), os.listdir(place)):
                file = read(place, name)
                if file is None or not file.kernel.startswith(boot_id()):
                    _remove_old(place, name)
                elif file.is_stale:
                    _retire(place, file)
                elif file.kernel == kernel():
                    found.append(replace(file, directory=directory))
    return sorted(found, key=lambda file: (file.started, file.pid))


def read_last(name: str = LAST) -> JobFile | None:
    """Return the file of the agent that has ended last, or of the last with logs; None if none is known."""
    for directory in directories():
        with suppress(OSError), open_directory(directory) as place:
            if (file := read(place, name)) is not None:
                return file
    return None


def read(place: str, name: str) -> JobFile | None:
    """Return one file; None if it is gone, or of another release with other fields."""
    with suppress(OSError, ValueError):
        with open(os.open(f"{place}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found: JobFile = reader(JobFile)(json.loads(file.read(_MAX_BYTES)))
        return found
    return None


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
