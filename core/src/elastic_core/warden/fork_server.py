"""The fork server as the warden sees it: started, restarted, asked to fork, and not waited for too long.

The fork server is ``python -u train.py`` like any worker, with a ``sitecustomize`` of ours in front: while ``site`` is
being imported it imports what is to be preloaded, and from then on it forks. A fork goes on from there as a fresh
interpreter does (``elastic_core.forkserver``).

What most programs import only later, and would import again in each life of each worker, need not hold up the first
start. Once the fork server has nothing to do, it forks a successor that imports that too, and gives way to it.

Imported by the warden process, so by few and cheap means. Nothing in here blocks.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from collections.abc import Callable

from elastic_core.exit_codes import describe_exit
from elastic_core.warden.channel import Channel, Message, close_all
from elastic_core.warden.linux import signal_group
from elastic_core.warden.spawn import STANDARD_STREAMS, Child, Kind, start

STAGE = "ELASTIC_FORK_SERVER"
"""Tells our ``sitecustomize`` what it is there for."""
ROOM = "ELASTIC_FORK_SERVER_ROOM"
"""Holds the place where a worker shows the variables that it has and the fork server has not (``title.py``)."""
ROOM_SIZE = 4096
"""Bytes; those variables have about a thousand."""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STARTUP = os.path.join(_PACKAGE, "forkserver", "startup")
"""The directory of our ``sitecustomize``."""
PROBE = f"""
import os, sys
if os.environ["{STAGE}"] != "hooked":
    sys.exit("elastic: this interpreter takes no sitecustomize from PYTHONPATH, so there is no warm start")
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Runs first, and becomes the fork server. An interpreter without the hook would simply run the user's program
there."""
SERVICE = f"""
import sys
sys.path[:1] = []
sys.path.append({os.path.dirname(_PACKAGE)!r})
from elastic_core.forkserver.service import main
main()
"""
"""What a service runs that starts fresh: the current directory is not searched, and our package is searched last."""
IMPORT_WITHIN = 60.0
"""Seconds that a fork server may import, from its start, before nobody waits for it any more."""
ANSWER_WITHIN = 10.0
"""Seconds that a worker waits for a fork server to fork it. It takes milliseconds."""
ANSWER_A_STOP_WITHIN = 1.0
"""The same, once everything is being stopped."""
GROWS_AFTER = (2.0, 10.0, 30.0, 120.0, 600.0)
"""Seconds after the newest worker was forked when the fork server is asked for a successor: at first for one that
imports what was named, once; and then for one that also imports what workers have imported by then."""
SUCCEEDS_WITHIN = 600.0
"""Seconds that a successor may import; the fork server serves meanwhile."""
NOTHING_NEW = "nothing is left to be imported"
"""A fork server's answer where a successor would be what it is."""
Tell = Callable[..., None]


class Nursery:
    """The fork server, and the children that wait for it.

    Args:
        tell: Tells the agent of an event.
        clock: Seconds, monotonic.

    Attributes:
        fork server: The process; None when there is none and will be none.
        refusal: Why nothing starts warm; '' when something may.
        waiting: Children that wait until it has imported everything.
    """

    def __init__(self, tell: Tell, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._settings: Message = {}
        self._channel: Channel | None = None
        self._ready = False
        self._early_deaths = 0
        self._began = -math.inf
        self._forked_at, self._grown = math.inf, 0
        self._successor: Child | None = None
        self._successors_channel: Channel | None = None
        self.fork_server: Child | None = None
        self.refusal = "there is no preloaded process"
        self.waiting: list[Child] = []

    @property
    def channels(self) -> list[Channel]:
        """The sockets to the fork server and to its successor, to be polled."""
        return [channel for channel in (self._channel, self._hearable()) if channel is not None]

    def _hearable(self) -> Channel | None:
        """The successor's, unless something is still to be sent to the fork server: what was asked of it is not
        lost."""
        return None if self._channel is not None and self._channel.pending else self._successors_channel

    def begin(self, settings: Message) -> Child | None:
        """Start the fork server for the first time: its process, or None if there can be none."""
        self._settings = settings
        self.refusal = ""
        return self._start()

    def complete(self, modules: list[str]) -> None:
        """Tell the fork server everything that it is to import, and the next ones too, where ``begin`` did not say
        all."""
        self._settings.update(modules=modules, whole=True)
        if self._channel is not None:
            self._channel.send({"modules": modules})

    def listen(self) -> None:
        """Take in what the fork server says."""
        if self._channel is None:
            return
        self._channel.flush()
        for message, _ in self._channel.receive():
            match message:
                case {"event": "ready", "seconds": seconds, "modules": modules}:
                    self._ready, self._early_deaths = True, 0
                    assert self.fork_server is not None
                    self._tell("fork_server_ready", pid=self.fork_server.pid, seconds=seconds, modules=modules)
                case {"event": "failed", "reason": reason}:
                    self._give_up(reason)
        if self._channel.closed:
            self._hang_up()  # its death will be noticed

    def listen_to_successor(self) -> None:
        """Take in what the successor says; once it is ready, it is the fork server."""
        channel, successor = self._hearable(), self._successor
        if channel is None or successor is None:
            return
        for message, _ in channel.receive():
            match message:
                case {"event": "ready", "seconds": seconds, "modules": modules}:
                    if not self._ready:  # it has taken the place of a dead one, and still imports
                        self.kill(self.fork_server)
                    self._hang_up()  # a living one ends then, when it has done what it was asked for
                    self.fork_server, self._channel, self._ready = successor, channel, True
                    self.refusal, self._early_deaths = "", 0
                    self._successor = self._successors_channel = None
                    more = {"learned": message["learned"], "refused": message["refused"]}
                    self._tell("fork_server_grown", pid=successor.pid, seconds=seconds, modules=modules, **more)
                    return
                case {"event": "failed", "reason": reason}:
                    self._give_up_successor(reason)
                    return

    def released(self) -> list[Child]:
        """Those that waited and need not wait any longer: it can fork them, or never will, or takes too long."""
        if not (self.refusal or self.ready or self.late()):
            return []
        waiting, self.waiting = self.waiting, []
        return waiting

    @property
    def ready(self) -> bool:
        """Whether the fork server forks at once."""
        return self._ready and self._channel is not None

    def ask(self, child: Child) -> None:
        """Have a child forked: now, or when the fork server is ready.

        Raises:
            OSError: No descriptor is left.
        """
        child.since = self._clock()
        if not self.ready or self._channel is None:
            self.waiting.append(child)
            return
        child.forked, child.asked = True, self.fork_server
        if child.kind is Kind.WORKER:
            self._forked_at, self._grown = self._clock(), min(self._grown, 1)
        given = {name: number for number, name in enumerate(STANDARD_STREAMS)} if child.kind is Kind.WORKER else {}
        given.update(child.given())
        child.pipe, given["pipe"] = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        request = {**child.request, "kind": child.kind.name, "warden": os.getpid(), "descriptors": list(given)}
        try:
            self._channel.send(request, list(given.values()))
        except OSError:
            os.close(child.pipe)
            child.pipe = None
            raise
        finally:
            os.close(given["pipe"])

    def fresh_service(self, child: Child) -> Child | None:
        """A service to be started as a process of its own, in place of ``child``; None if nobody knows how."""
        if not self._settings:
            return None
        argv = [*self._settings["python"], "-c", SERVICE]
        request: Message = {**child.request, "argv": argv, "env": dict(self._settings["env"])}
        descriptors, child.descriptors = child.descriptors, []
        return Child(child.kind, {**request, "cwd": None, "cpus": None, "worker": False}, descriptors)

    def due(self) -> float:
        """When somebody will be released."""
        if self.waiting and (self.refusal or self.ready):
            return 0.0
        waits_until = self._began + IMPORT_WITHIN if self.waiting else math.inf
        return min(waits_until, self._succeeds_at())

    def _succeeds_at(self) -> float:
        """When the fork server is asked for a successor, or when the one that imports has taken too long."""
        if self._successor is not None:
            return self._successor.since + SUCCEEDS_WITHIN
        wanted = self.ready and self._settings.get("later") and self._grown < len(GROWS_AFTER)
        return self._forked_at + GROWS_AFTER[self._grown] if wanted else math.inf

    def successor(self) -> Child | None:
        """Have the successor forked, if it is time: its process, whose start is to be heard."""
        if self._clock() < self._succeeds_at():
            return None
        if self._successor is not None:
            self.kill(self._successor)
            self._give_up_successor(f"its import did not end within {SUCCEEDS_WITHIN:.0f} s")
            return None
        learns = self._grown > 0  # at first its workers import what they need, and should have the CPUs
        request: Message = {"modules": self._settings["later"], "learns": learns, "descriptors": ["control"]}
        self._grown += 1
        try:
            ours, theirs = socket.socketpair()
            child = Child(Kind.FORK_SERVER, request, [theirs.detach()])
            self._successor, self._successors_channel = child, Channel(ours)
            self.ask(child)
        except OSError as exc:
            self._give_up_successor(str(exc))
            return None
        return child

    def late(self) -> bool:
        """Whether the fork server still imports, and has done so for so long that nobody waits for it."""
        return not self.ready and self._clock() >= self._began + IMPORT_WITHIN

    def dismiss(self) -> list[Child]:
        """The workers that waited: they are not wanted any more."""
        dismissed = [child for child in self.waiting if child.kind is Kind.WORKER]
        self.waiting = [child for child in self.waiting if child.kind is not Kind.WORKER]
        return dismissed

    def not_started(self, child: Child, reason: str) -> None:
        """The fork server's program could not be run at all, or the successor could not be forked."""
        if child is self._successor:
            self._give_up_successor(reason)
        elif child is self.fork_server:
            self._give_up(reason)

    def died(self, child: Child, returncode: int, *, closing: bool) -> Child | None:
        """A fork server is dead; the next one, if there is to be one. Its children live on.

        One that dies while it imports is given a second chance, and no third.
        """
        if child is self._successor:
            self.listen_to_successor()  # its last words
        if child is self._successor:
            self._give_up_successor(f"the process that imported it {describe_exit(returncode)}")
        if child is not self.fork_server:
            return None
        self.listen()  # its last words
        self._hang_up()
        self.fork_server = None
        if closing or self.refusal:
            return None
        was_ready, self._ready = self._ready, False
        self._early_deaths += not was_ready
        if self._early_deaths > 1:
            imported = ", ".join(self._settings["modules"])
            self._give_up(f"it died twice while it imported {imported} (it {describe_exit(returncode)})")
            return None
        self._tell("fork_server_died", how=describe_exit(returncode))
        return self._start()

    def kill(self, fork_server: Child | None) -> None:
        """End one that does not answer, with whatever it is about to fork: they are one process group still."""
        if fork_server is not None and fork_server.pid is not None:
            signal_group(fork_server.pid, signal.SIGKILL)

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _give_up_successor(self, reason: str) -> None:
        if reason != NOTHING_NEW:
            self._settings["later"] = []  # the next one would come to the same end
            self._tell("fork_server_stayed", reason=reason)
        if self._successor is not None:
            close_all(self._successor.descriptors)
        if self._successors_channel is not None:
            self._successors_channel.close()
        self._successor = self._successors_channel = None

    def _give_up(self, reason: str) -> None:
        self.refusal = "the preloaded process could not be made"
        self._ready = False
        self._tell("fork_server_failed", reason=reason)

    def _start(self) -> Child | None:
        environment = dict(self._settings["env"])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [STARTUP, environment.get("PYTHONPATH")]))
        environment[STAGE], environment[ROOM] = "probe", " " * ROOM_SIZE
        python = self._settings["python"]
        argv = [*python, "-c", PROBE, *python, *self._settings["program"]]
        request: Message = {"argv": argv, "env": environment, "cwd": None, "cpus": None, "worker": False}
        descriptors: list[int] = []
        try:
            ours, theirs = socket.socketpair()
            descriptors = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), theirs.detach()]
            channel = Channel(ours)
            channel.send({name: self._settings[name] for name in ("modules", "whole", "env")})
            child = Child(Kind.FORK_SERVER, {**request, "descriptors": ["stdin", "control"]}, descriptors)
            start(child)
        except OSError as exc:
            close_all(descriptors)
            self._give_up(str(exc))
            return None
        self.fork_server, self._channel, self._began = child, channel, self._clock()
        self._forked_at, self._grown = self._clock(), 0
        return child
