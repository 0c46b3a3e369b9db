"""How the warden starts a process: fork and exec, and the pipe on which every child says how its start went.

Imported by the warden process, so by few and cheap means. A worker that starts warm is forked by the fork server
(``nursery``), not here, but speaks on the same kind of pipe.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import json
import os
import signal
from typing import NoReturn

from elastic_core.warden.channel import Message, close_all
from elastic_core.warden.linux import die_with_parent
from elastic_core.worker.channel import CONTROL_VARIABLE

OUT_OF_THE_WAY = 48
"""From here on a control channel gets its number: a script's files have theirs from 3 on, a shell's near 63 and 255."""
SLOT_DESCRIPTOR = 200
"""From here on the node's slot gets its number: below 255, where bash keeps its script."""
SERVICE_VARIABLE = "ELASTIC_SERVICE"
"""Tells a service that starts fresh what to call (``forkserver/service.py``): JSON with the entry, the arguments, and
the descriptors' numbers by name."""
STANDARD_STREAMS = ("stdin", "stdout", "stderr")
OOM_SCORE = 300
"""Added to a worker's oom_score_adj: when memory runs out, a worker dies before the agent and the warden do."""


class Kind(enum.Enum):
    """What a child of the warden is."""

    WORKER = enum.auto()
    SERVICE = enum.auto()
    """Started by name, ended by name; a round's stop does not touch it."""
    FORK_SERVER = enum.auto()
    """The service that forks the others."""


class Child:
    """A process that was asked for, from the request until it is reaped.

    Attributes:
        kind: What it is.
        request: What was asked for.
        descriptors: What it is to be given, for as long as it may be needed once more.
        slot: The warden's own descriptor of the node's slot, of which a worker inherits a copy; None where there is
            none (rule S8).
        forked: Whether it is the fork server that forks it. It then says ``pid N``, and in the end ``ok N UNLEARNED``
        or
            ``no`` and the reason. What we fork ourselves says an error's text, or nothing but the end: its program
            runs.
        pid: Its number, as soon as that is known.
        pipe: What it says, to be read; None before it was asked for, and after its end.
        since: When it was last asked for.
        asked: The fork server that was asked to fork it.
        started: Its program runs, or has run.
        unlearned: How many modules a worker before it has imported, and its fork server has neither imported nor
            tried to.
        unwanted: It was ended before it began.
    """

    __slots__ = (
        "_said",
        "asked",
        "descriptors",
        "forked",
        "kind",
        "pid",
        "pipe",
        "request",
        "since",
        "slot",
        "started",
        "tag",
        "unlearned",
        "unwanted",
    )

    def __init__(self, kind: Kind, request: Message, descriptors: list[int], slot: int | None = None) -> None:
        self.kind = kind
        self.request = request
        self.descriptors = descriptors
        self.slot = slot
        self.tag: int | None = request.get("tag")
        self.forked = False
        self.pid: int | None = None
        self.pipe: int | None = None
        self.since = 0.0
        self.asked: Child | None = None
        self.started = False
        self.unlearned = 0
        self.unwanted = False
        self._said = b""

    def given(self) -> dict[str, int]:
        """Its descriptors by name.

        Raises:
            OSError: Some of them did not arrive.
        """
        names = self.request["descriptors"]
        if len(self.descriptors) < len(names):
            raise OSError("no descriptors are left for its streams: raise the limit of open files (ulimit -n)")
        given = dict(zip(names, self.descriptors, strict=True))
        return given if self.slot is None else {**given, "slot": self.slot}

    def hear(self) -> bool:
        """Take in what it has said; whether that was all."""
        if self.pipe is None:
            return False
        while True:
            try:
                said = os.read(self.pipe, 65536)
            except BlockingIOError:
                return False
            self._said += said
            ok = False
            while self.forked and self._said.startswith((b"pid ", b"ok ")) and b"\n" in self._said:
                line, self._said = self._said.split(b"\n", 1)
                word, number, *more = line.split()
                # Both say the same number: whoever is to say the first may be killed just before.
                self.pid, ok = (
                    int(number),
                    word == b"ok",
                )  # the fork server may hold the other end a little longer than it
                self.unlearned = int(more[0]) if more else 0
            if ok or not said:
                os.close(self.pipe)
                self.pipe = None
                self.started = ok or not (self.forked or self._said)
                return True

    def give_up(self) -> None:
        """Hear no more of it. One that has not said that all is well finds that it cannot, and goes no further."""
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None

    def complaint(self) -> str:
        """Why it did not start, in its own words, or ''."""
        return self._said.decode(errors="replace").removeprefix("no ")


def start(child: Child) -> None:
    """Fork and exec a child, and close its descriptors. Whether it gets as far as exec will be told on its pipe.

    Raises:
        OSError: No process, or no descriptor, is left.
    """
    try:
        child.pid, child.pipe = _fork(child.request, child.given())
    finally:
        close_all(child.descriptors)


def inheritable(descriptor: int, number: int = OUT_OF_THE_WAY) -> int:
    """A copy for the program to inherit, which gets this number or the next free one, if so many are allowed.

    Raises:
        OSError: No descriptor is left.
    """
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD, number)
    except OSError:  # so few are allowed
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD, 3)


def volunteer_for_oom() -> None:
    """When memory runs out, let this process die before others."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
        score = min(1000, int(file.read()) + OOM_SCORE)
        file.seek(0)
        file.write(str(score))


def _fork(request: Message, given: dict[str, int]) -> tuple[int, int]:
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    warden = os.getpid()
    # Signals to the child while it is still the warden's copy, which ignores them, wait for its own dispositions.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(request, given, writing, warden)
    except OSError:
        os.close(reading)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(writing)
    return pid, reading


def _become(request: Message, given: dict[str, int], pipe: int, warden: int) -> NoReturn:
    """In the child: become the program, or say why not. Every other descriptor is close-on-exec."""
    what = request["argv"][0]
    try:
        os.setsid()
        die_with_parent()
        if os.getppid() != warden:
            os._exit(127)  # it died before that was set
        for number, name in enumerate(STANDARD_STREAMS):
            if name in given:
                os.dup2(given[name], number)
        environment = request["env"]
        if "control" in given:
            environment[CONTROL_VARIABLE] = str(inheritable(given["control"]))
        if "slot" in given:
            inheritable(given["slot"], SLOT_DESCRIPTOR)
        if "entry" in request:  # a service
            numbers = {name: inheritable(fd) for name, fd in given.items()}
            call = {"entry": request["entry"], "arguments": request["arguments"], "descriptors": numbers}
            environment[SERVICE_VARIABLE] = json.dumps(call)
        if request.get("worker", True):
            volunteer_for_oom()
        if request["cpus"] is not None:
            what = f"CPUs {request['cpus']}"
            os.sched_setaffinity(0, request["cpus"])
            what = request["argv"][0]
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if request["cwd"] is not None:
            what = request["cwd"]
            os.chdir(what)
            what = request["argv"][0]
        os.execvpe(what, request["argv"], environment)
    except OSError as exc:
        os.write(pipe, str(OSError(exc.errno, exc.strerror, what)).encode(errors="replace"))
    except BaseException as exc:  # a NUL in an argument, say; whatever it is must not get into a second warden's loop
        os.write(pipe, f"{what!r}: {exc}".encode(errors="replace"))
    finally:
        os._exit(127)
