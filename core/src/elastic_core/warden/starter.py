"""The warden's side of the starter: starts and restarts it, asks it for forks, and limits how long it may take.

The starter begins as ``python -u train.py`` like any worker, with our ``sitecustomize`` in front. While ``site`` is
imported, the starter's entry is called there, and from then on it forks. A fork continues there as a fresh interpreter
would (``elastic_core.starter``). Nothing in here blocks.

The entry is called with three arguments (``elastic_core.starter``). The first is the descriptor of a socket. A
``Channel`` reads messages from it: first the starter's own order with the pid of the ``warden``, then requests, each
with descriptors, whose names ``request["descriptors"]`` has in order. The starter answers with ``{"event": "ready",
"text": …, "fields": {…}}``, or ``{"event": "failed", "reason": …}``, and ends when the channel closes. It sends
``ready`` again after more imports. With a ``pid``, a child of the starter replaces it: the starter sends that as its
last act, between two messages, and dies; the child reads the next request from the same socket, and becomes the
warden's (``die_once_adopted``). ``"complete": false`` says that the starter is to import more later.

A request has a ``kind``: ``WORKER`` (``argv``, ``env``, ``cwd``, ``cpus``, ``ignored``, ``startup``), ``SERVICE``
(``entry``, ``arguments``) or ``COMPLETE``, which asks for no process: import the rest now, since no worker is about to
start that needs the CPUs. A worker calls the entry's third argument with the paths in ``startup`` first, once. The
warden, whose pid is ``warden``, is to become the parent, so the process, which has one thread and blocks all signals,
forks twice (``die_once_adopted``). On the descriptor ``pipe`` it writes ``pid N`` and a newline, and just before the
program begins ``ok N UNLEARNED`` and a newline: how many modules it imports itself, as far as that is known. A request
that it cannot fulfil is answered with ``no REASON``.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable

from elastic_core.exit_codes import describe_exit
from elastic_core.warden.channel import Channel, Message, close_all
from elastic_core.warden.spawn import STAGE, STANDARD_STREAMS, STARTUP, Child, Kind, start

ENTRY, ROOTS = "ELASTIC_STARTER", "ELASTIC_STARTER_ROOTS"
"""The variables in which the starter finds its entry, and the directories of the packages that it needs."""
ROOM = "ELASTIC_STARTER_ROOM"  # reserves room in which a worker shows the variables that the starter has not
ROOM_SIZE = 4096  # bytes; these variables take about a thousand
PROBE = f"""
import os, sys
if os.environ["{STAGE}"] != "starter":
    sys.exit("elastic: this interpreter takes no sitecustomize from PYTHONPATH, so there is no warm start")
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Runs first, and becomes the starter: an interpreter without the hook would simply run the user's program."""
SERVICE = """
import sys
sys.path[:1] = []
sys.path += {roots!r}
from elastic_core.warden.service import main
main()
"""
"""The program of a service that starts fresh: it does not search the current directory, and our packages last."""
IMPORT_MAX_SECONDS = 60.0  # from the start of a starter until it is ready; after that, workers start fresh
FORK_MAX_SECONDS = 10.0  # from the request for a fork to its pid; it takes milliseconds
FORK_MAX_SECONDS_WHILE_STOPPING = 1.0  # instead of :data:`FORK_MAX_SECONDS` while the workers are being stopped
NO_STARTER = "there is no process that forks workers"


class StarterClient:
    """The starter, and the children that wait for it. ``send_event`` sends an event to the agent."""

    def __init__(self, send_event: Callable[..., None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send_event = send_event
        self._clock = clock
        self._settings: Message = {}
        self._ready = False
        self._early_deaths = 0
        self._began = -math.inf
        self._refusal = NO_STARTER
        self.process: Child | None = None  # the starter; None if there is none and will be none
        self.channel: Channel | None = None  # the socket to it, to be polled, until it closes that
        self.waiting: list[Child] = []  # the children that wait for the end of its imports

    def refusal(self) -> str:
        """Return why no child starts warm now; '' if children may."""
        if not (self._refusal or self.is_ready) and self._clock() >= self._began + IMPORT_MAX_SECONDS:
            return "the process that forks workers takes too long to import"
        return self._refusal

    def start(self, settings: Message) -> Child | None:
        """Start the starter, or replace one with other settings, or end it if there are none.

        Return its process; None if none was started.
        """
        if settings == self._settings:
            return None
        if self.process is not None:
            self.process.kill()
            self._hang_up()
        self.process, self._ready, self._settings = None, False, settings
        self._refusal = "" if settings else NO_STARTER
        return self._start() if settings else None

    def complete(self) -> None:
        """Have the starter import its remaining modules now."""
        if self.is_ready and self.channel is not None:
            self.channel.send({"kind": "COMPLETE", "descriptors": []})

    def receive(self) -> None:
        """Handle the messages of the starter, which may have another pid then."""
        current, channel = self.process, self.channel
        if current is None or channel is None:
            return
        channel.flush()
        for message, _ in channel.receive():
            match message:
                case {"event": "ready", "text": str(text), "fields": dict(more)}:
                    self._ready, self._early_deaths = True, 0
                    current.pid, complete = message.get("pid", current.pid), message.get("complete", True)
                    self._send_event("starter_ready", pid=current.pid, text=text, more=more, complete=complete)
                case {"event": "failed", "reason": reason}:
                    self._fail(reason)
                case _:
                    self._fail(f"it sent {message!r}")
        if channel.closed:
            self._hang_up()  # its death will be noticed

    def take_released(self) -> list[Child]:
        """Remove and return the children that need not wait any longer: it can fork them, never will, or is late."""
        if not (self.is_ready or self.refusal()):
            return []
        waiting, self.waiting = self.waiting, []
        return waiting

    @property
    def is_ready(self) -> bool:
        """True if the starter forks at once."""
        return self._ready and self.channel is not None

    def request_fork(self, child: Child) -> None:
        """Request the fork of a child: now, or when the starter is ready. OSError if no descriptor is left."""
        child.requested_at = self._clock()
        if not self._ready or self.channel is None:
            self.waiting.append(child)
            return
        child.forked, child.requested_of = True, self.process
        given = {name: number for number, name in enumerate(STANDARD_STREAMS)} if child.kind is Kind.WORKER else {}
        given.update(child.named_descriptors())
        child.pipe, given["pipe"] = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        request = {**child.request, "kind": child.kind.name, "warden": os.getpid(), "descriptors": list(given)}
        try:
            self.channel.send(request, list(given.values()))
        except OSError:
            child.close_pipe()
            raise
        finally:
            os.close(given["pipe"])

    def fresh_service(self, child: Child) -> Child | None:
        """Make a service that starts fresh out of ``child``; None if no settings have come."""
        if not self._settings:
            return None
        code = SERVICE.format(roots=self._settings["roots"])
        return child.renew(argv=[*self._settings["python"], "-c", code], env=dict(self._settings["env"]))

    def next_deadline(self) -> float:
        """Return when :meth:`take_released` has something to do."""
        if self.waiting and (self._refusal or self.is_ready):
            return 0.0
        return self._began + IMPORT_MAX_SECONDS if self.waiting else math.inf

    def drop_waiting_workers(self) -> list[Child]:
        """Remove and return the workers that wait, because of a stop."""
        dismissed = [child for child in self.waiting if child.kind is Kind.WORKER]
        self.waiting = [child for child in self.waiting if child.kind is not Kind.WORKER]
        return dismissed

    def start_failed(self, child: Child, reason: str) -> None:
        """Handle that the starter's program could not run."""
        if child is self.process:
            self._fail(reason)

    def handle_death(self, child: Child, returncode: int, *, closing: bool) -> Child | None:
        """Handle the death of a starter, whose last message was received, and whose children live on.

        Return the next one, if there is to be one. One that dies during its imports is started again once.
        """
        if child is not self.process:
            return None
        self._hang_up()
        self.process = None
        if closing or self._refusal:
            return None
        was_ready, self._ready = self._ready, False
        self._early_deaths += not was_ready
        if self._early_deaths > 1:
            imported = ", ".join(self._settings["imports"]) or "what it needs"
            self._fail(f"it died twice while it imported {imported} (it {describe_exit(returncode)})")
            return None
        self._send_event("starter_died", how=describe_exit(returncode))
        return self._start()

    def _hang_up(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def _fail(self, reason: str) -> None:
        self._refusal = "the process that forks workers could not be made"
        self._ready = False
        self._send_event("starter_failed", reason=reason)

    def _start(self) -> Child | None:
        environment = dict(self._settings["env"])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [STARTUP, environment.get("PYTHONPATH")]))
        environment[STAGE], environment[ROOM] = "probe", " " * ROOM_SIZE
        environment[ENTRY], environment[ROOTS] = self._settings["entry"], os.pathsep.join(self._settings["roots"])
        python = self._settings["python"]
        argv = [*python, "-c", PROBE, *python, *self._settings["program"]]
        request: Message = {"argv": argv, "env": environment, "descriptors": ["stdin", "control"]}
        descriptors: list[int] = []
        try:
            ours, theirs = socket.socketpair()
            descriptors = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), theirs.detach()]
            channel = Channel(ours)
            channel.send({**self._settings["order"], "warden": os.getpid()})
            child = Child(Kind.STARTER, request, descriptors)
            start(child)
        except OSError as exc:
            close_all(descriptors)
            self._fail(str(exc))
            return None
        self.channel, self.process, self._began = channel, child, self._clock()
        return child
