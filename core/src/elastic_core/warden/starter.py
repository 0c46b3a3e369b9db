"""The warden's side of the starter: starts and restarts it, asks it for forks, and limits how long it may take.

The starter begins as ``python -u train.py`` like any worker, with our ``sitecustomize`` in front. While ``site`` is
imported, the starter's entry is called there, and from then on it forks. A fork continues there as a fresh interpreter
would (``elastic_core.starter``).

Modules that programs import late should not delay the first start. So once the starter is idle, it forks a successor
that imports these modules too and replaces it. Nothing in here blocks.

The entry is called with the descriptor of a socket. ``Channel`` reads messages from it: first the starter's own order,
then requests, each with descriptors, whose names ``request["descriptors"]`` has in their order. The starter answers
once with ``{"event": "ready", "text": …, "fields": {…}}``, or ``{"event": "failed", "reason": …}``, and ends when the
channel closes.

A request has a ``kind``: ``WORKER`` (``argv``, ``env``, ``cwd``, ``cpus``, ``ignored``, ``startup``), ``SERVICE``
(``entry``, ``arguments``) or ``STARTER`` (a request of ``Starter.growth``; ``control`` is the socket of the process
that replaces this one). A worker executes the files of ``startup`` first (``spawn.execute``). The warden,
whose pid is ``warden``, is to become the parent, so the process, which has one thread and blocks all signals, forks
twice (``die_once_adopted``). On the descriptor ``pipe`` it writes ``pid N`` and a newline, and just before the program
begins ``ok N MISSING`` and a newline: how many modules it imports itself, as far as that is known. A request that it
cannot fulfil is answered with ``no REASON``.
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
ROOM = "ELASTIC_STARTER_ROOM"
"""Reserves room in which a worker shows the variables that the starter has not."""
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
SUCCESSOR_MAX_SECONDS = 600.0  # for the imports of a successor; the starter serves meanwhile
NO_STARTER = "there is no process that forks workers"
NOTHING_NEW = "nothing is left to be imported"  # the starter's answer if a successor would be the same


class StarterClient:
    """The starter, and the children that wait for it.

    Args:
        send_event: Sends an event to the agent.
        clock: Seconds on the monotonic clock.
    """

    def __init__(self, send_event: Callable[..., None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send_event = send_event
        self._clock = clock
        self._settings: Message = {}
        self._ready = False
        self._early_deaths = 0
        self._began = -math.inf
        self._forked_at, self._grown = math.inf, 0
        self._successor: Child | None = None
        self._refusal = NO_STARTER
        self.process: Child | None = None  # the starter; None if there is none and will be none
        self.waiting: list[Child] = []  # the children that wait for the end of its imports

    @property
    def channels(self) -> list[Channel]:
        """The sockets to the starter and to its successor, to be polled."""
        both = (self.process, self._readable_successor())
        return [one.channel for one in both if one is not None and one.channel is not None]

    def _readable_successor(self) -> Child | None:
        """Return the successor, once it may become the starter: its pid is known, and no request is lost.

        The report of its pid, on a pipe, may be read later than its first message.
        """
        current, successor = self.process, self._successor
        undelivered = current is not None and current.channel is not None and current.channel.pending
        return successor if successor is not None and successor.pid is not None and not undelivered else None

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
            self.process.hang_up()
        self.process, self._ready, self._settings = None, False, settings
        self._refusal = "" if settings else NO_STARTER
        return self._start() if settings else None

    def grow(self) -> None:
        """Have the starter import more as soon as it is ready: no worker is about to start that needs the CPUs."""
        if (growth := self._settings.get("growth")) and self._grown == 0:
            self._forked_at = self._clock() - growth[0][0]

    def receive(self) -> None:
        """Handle the messages of the starter."""
        current = self.process
        if current is None or current.channel is None:
            return
        current.channel.flush()
        for message, _ in current.channel.receive():
            match message:
                case {"event": "ready", "text": str(text), "fields": dict(more)}:
                    self._ready, self._early_deaths = True, 0
                    self._send_event("starter_ready", pid=current.pid, text=text, more=more)
                case {"event": "failed", "reason": reason}:
                    self._fail(reason)
                case _:
                    self._fail(f"it sent {message!r}")
        if current.channel.closed:
            current.hang_up()  # its death will be noticed

    def receive_from_successor(self) -> None:
        """Handle the messages of the successor; once it is ready, it is the starter."""
        successor = self._readable_successor()
        if successor is None or successor.channel is None:
            return
        for message, _ in successor.channel.receive():
            match message:
                case {"event": "ready", "text": str(text), "fields": dict(more)}:
                    if self.process is not None:
                        if not self._ready:  # the old one has replaced a dead one, and still imports
                            self.process.kill()
                        self.process.hang_up()  # the old starter ends after the forks that were requested
                    self.process, self._successor, self._ready = successor, None, True
                    self._refusal, self._early_deaths = "", 0
                    self._grown = max(self._grown, 1)  # 0 if the old one was started after this one was requested
                    self._send_event("starter_grown", pid=successor.pid, text=text, more=more)
                    return
                case {"event": "failed", "reason": reason}:
                    self._drop_successor(reason)
                    return

    def take_released(self) -> list[Child]:
        """Remove and return the children that need not wait any longer: it can fork them, never will, or is late."""
        if not (self.is_ready or self.refusal()):
            return []
        waiting, self.waiting = self.waiting, []
        return waiting

    @property
    def is_ready(self) -> bool:
        """True if the starter forks at once."""
        return self._ready and self.process is not None and self.process.channel is not None

    def request_fork(self, child: Child) -> None:
        """Request the fork of a child: now, or when the starter is ready.

        Raises:
            OSError: No descriptor is left.
        """
        child.requested_at = self._clock()
        current = self.process
        if not self._ready or current is None or current.channel is None:
            self.waiting.append(child)
            return
        child.forked, child.requested_of = True, current
        if child.kind is Kind.WORKER:
            self._forked_at, self._grown = self._clock(), min(self._grown, 1)
        given = {name: number for number, name in enumerate(STANDARD_STREAMS)} if child.kind is Kind.WORKER else {}
        given.update(child.named_descriptors())
        child.pipe, given["pipe"] = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        request = {**child.request, "kind": child.kind.name, "warden": os.getpid(), "descriptors": list(given)}
        try:
            current.channel.send(request, list(given.values()))
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
        """Return when :meth:`take_released` or :meth:`fork_successor` has something to do."""
        if self.waiting and (self._refusal or self.is_ready):
            return 0.0
        waits_until = self._began + IMPORT_MAX_SECONDS if self.waiting else math.inf
        return min(waits_until, self._successor_deadline())

    def _successor_deadline(self) -> float:
        """Return when a successor is due, or when the one that imports has taken too long."""
        if self._successor is not None:
            return self._successor.requested_at + SUCCESSOR_MAX_SECONDS
        growth = self._settings.get("growth", ())
        return self._forked_at + growth[self._grown][0] if self.is_ready and self._grown < len(growth) else math.inf

    def fork_successor(self) -> Child | None:
        """Request the fork of a successor if one is due; return its process, whose start is to be read."""
        if self._clock() < self._successor_deadline():
            return None
        if self._successor is not None:
            self._successor.kill()
            self._drop_successor(f"its import did not end within {SUCCESSOR_MAX_SECONDS:.0f} s")
            return None
        request: Message = {**self._settings["growth"][self._grown][1], "descriptors": ["control"]}
        self._grown += 1
        try:
            ours, theirs = socket.socketpair()
            child = Child(Kind.STARTER, request, [theirs.detach()])
            child.channel, self._successor = Channel(ours), child
            self.request_fork(child)
        except OSError as exc:
            self._drop_successor(str(exc))
            return None
        return child

    def drop_waiting_workers(self) -> list[Child]:
        """Remove and return the workers that wait, because of a stop."""
        dismissed = [child for child in self.waiting if child.kind is Kind.WORKER]
        self.waiting = [child for child in self.waiting if child.kind is not Kind.WORKER]
        return dismissed

    def start_failed(self, child: Child, reason: str) -> None:
        """Handle that the starter's program could not run, or that the successor could not be forked."""
        if child is self._successor:
            self._drop_successor(reason)
        elif child is self.process:
            self._fail(reason)

    def handle_death(self, child: Child, returncode: int, *, closing: bool) -> Child | None:
        """Handle the death of a starter, whose children live on; return the next one, if there is to be one.

        One that dies during its imports is started again once.
        """
        if child is self._successor:
            self.receive_from_successor()  # its last message
        if child is self._successor:
            self._drop_successor(f"the process that imported it {describe_exit(returncode)}")
        if child is not self.process:
            return None
        self.receive()  # its last message
        child.hang_up()
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

    def _drop_successor(self, reason: str) -> None:
        if reason != NOTHING_NEW:
            self._settings["growth"] = []  # the next one would fail too
        if reason != NOTHING_NEW or self._grown == 1:  # a node that joins a live round waits for the first one
            self._send_event("starter_stayed", reason=reason)
        if self._successor is not None:
            close_all(self._successor.descriptors)
            self._successor.hang_up()
        self._successor = None

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
            channel.send(self._settings["order"])
            child = Child(Kind.STARTER, request, descriptors)
            start(child)
        except OSError as exc:
            close_all(descriptors)
            self._fail(str(exc))
            return None
        child.channel, self.process, self._began = channel, child, self._clock()
        self._forked_at, self._grown = self._clock(), 0
        return child
