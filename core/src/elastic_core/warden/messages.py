"""What the warden tells the agent: one class for each kind of message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from elastic_core.exit_codes import describe_exit
from elastic_core.warden.channel import Message

__all__ = [
    "Died",
    "Exited",
    "Fenced",
    "ForkServerDied",
    "ForkServerEvent",
    "ForkServerFailed",
    "ForkServerGrown",
    "ForkServerReady",
    "ForkServerStayed",
    "Gone",
    "ServiceEnded",
    "ServiceFailed",
    "ServiceStarted",
    "Signalled",
    "SpawnFailed",
    "Spawned",
    "StartedFresh",
    "Stuck",
    "WardenEvent",
    "death",
    "event",
]


@dataclass(frozen=True, slots=True)
class Spawned:
    """A worker's program runs."""

    tag: int
    pid: int
    warm: bool = False
    """Whether the fork server forked it."""
    unlearned: int = 0
    """How many modules a worker before it has imported that the fork server has neither imported nor tried to."""


@dataclass(frozen=True, slots=True)
class StartedFresh:
    """A worker that was to be forked by the fork server is started as a fresh process, and why: a line."""

    tag: int
    why: str


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """A worker could not be started, and why: ``[Errno 2] No such file or directory: 'x'``."""

    tag: int
    error: str


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker that had started has ended; ``returncode`` is :class:`subprocess.Popen`'s, negative for a signal."""

    tag: int
    pid: int
    returncode: int
    at: float = field(default=0.0, compare=False)
    """When the warden reaped it, in seconds on the monotonic clock, which all processes of a host share."""


@dataclass(frozen=True, slots=True)
class Signalled:
    """One step of a stop: the workers whose process groups got a signal, or every process that got SIGKILL."""

    signum: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """The answer to a ``Warden.stop``, and to those before it: no descendant of the warden is left but its services.

    Attributes:
        serial: Which stop it was, counted from 1.
    """

    serial: int


@dataclass(frozen=True, slots=True)
class Stuck:
    """A process is still there 15 s after SIGKILL, waiting in the kernel in ``wchan``, if that is known; said once."""

    pid: int
    name: str
    wchan: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """The dead-man's switch went off, and no descendant is left but services. The workers that it killed are not
    reported as exited, nor those that were still to be started as failed.

    A stop that was asked for meanwhile has its own answer after this one.
    """


@dataclass(frozen=True, slots=True)
class ForkServerReady:
    """The fork server has imported its modules, and workers may start warm from now on."""

    pid: int
    seconds: float
    """How long that took."""
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForkServerFailed:
    """There is no fork server and will be none; ``reason`` is the traceback of the import that raised, or a line."""

    reason: str


@dataclass(frozen=True, slots=True)
class ForkServerDied:
    """The fork server is dead. The next one is being made; what it had forked lives on."""

    how: str
    """``exited with code 1``, ``was killed by SIGKILL``."""


@dataclass(frozen=True, slots=True)
class ForkServerGrown:
    """A fork server that has imported these modules too has taken the place of the one before."""

    pid: int
    seconds: float
    """How long the import took."""
    modules: tuple[str, ...]
    learned: int = 0
    """How many modules it has imported besides because workers have."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Modules that workers have imported and it must not, and why."""


@dataclass(frozen=True, slots=True)
class ForkServerStayed:
    """Nothing comes of that; the fork server stays as it is."""

    reason: str


ForkServerEvent: TypeAlias = ForkServerReady | ForkServerFailed | ForkServerDied | ForkServerGrown | ForkServerStayed
"""What becomes of the fork server."""


@dataclass(frozen=True, slots=True)
class ServiceStarted:
    """A service's function is about to be called."""

    tag: int
    pid: int


@dataclass(frozen=True, slots=True)
class ServiceFailed:
    """A service could not be started, and why."""

    tag: int
    error: str


@dataclass(frozen=True, slots=True)
class ServiceEnded:
    """A service that had started has ended, by itself or because it was told to; ``returncode`` as in Exited."""

    tag: int
    returncode: int


@dataclass(frozen=True, slots=True)
class Died:
    """The warden itself is gone, and everything below it was killed. Nothing comes after this."""

    reason: str


WardenEvent: TypeAlias = (
    "Spawned | StartedFresh | SpawnFailed | Exited | Signalled | Gone | Stuck | Fenced | Died | ForkServerReady "
    "| ForkServerFailed | ForkServerDied | ForkServerGrown | ForkServerStayed "
    "| ServiceStarted | ServiceFailed | ServiceEnded"
)


def event(message: Message) -> WardenEvent:
    """What a message of the warden means. (What ``Gone`` and ``Fenced`` mean for a round, ``Warden.is_over`` knows.)"""
    match message:
        case {"event": "spawned", "tag": tag, "pid": pid, "warm": warm, "unlearned": unlearned}:
            return Spawned(tag, pid, warm, unlearned)
        case {"event": "started_fresh", "tag": tag, "why": why}:
            return StartedFresh(tag, why)
        case {"event": "spawn_failed", "tag": tag, "error": error}:
            return SpawnFailed(tag, error)
        case {"event": "exited", "tag": tag, "pid": pid, "returncode": returncode, "at": at}:
            return Exited(tag, pid, returncode, at)
        case {"event": "signalled", "signum": signum, "pids": pids}:
            return Signalled(signum, tuple(pids))
        case {"event": "stuck", "pid": pid, "name": name, "wchan": wchan}:
            return Stuck(pid, name, wchan)
        case {"event": "fork_server_ready", "pid": pid, "seconds": seconds, "modules": modules}:
            return ForkServerReady(pid, seconds, tuple(modules))
        case {"event": "fork_server_grown", "pid": pid, "seconds": seconds, "modules": modules, **learned}:
            return ForkServerGrown(pid, seconds, tuple(modules), learned.get("learned", 0), learned.get("refused", {}))
        case {"event": "fork_server_stayed", "reason": reason}:
            return ForkServerStayed(reason)
        case {"event": "fork_server_failed", "reason": reason}:
            return ForkServerFailed(reason)
        case {"event": "fork_server_died", "returncode": returncode}:
            return ForkServerDied(describe_exit(returncode))
        case {"event": "service_started", "tag": tag, "pid": pid}:
            return ServiceStarted(tag, pid)
        case {"event": "service_failed", "tag": tag, "error": error}:
            return ServiceFailed(tag, error)
        case {"event": "service_ended", "tag": tag, "returncode": returncode}:
            return ServiceEnded(tag, returncode)
        case {"event": "gone", "serial": serial}:
            return Gone(serial)
        case {"event": "fenced"}:
            return Fenced()
    raise AssertionError(f"the warden sent {message!r}")


def death(returncode: int | None) -> Died:
    """The warden's own end; ``returncode`` is None where it only hung up."""
    return Died("it closed its connection" if returncode is None else f"it {describe_exit(returncode)}")
