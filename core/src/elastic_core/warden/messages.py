"""The events that the warden reports to the agent: one class for each kind of message.

The classes are the schema: a message ``{"event": "spawn_failed", "tag": 1, "error": "..."}`` is a :class:`SpawnFailed`
with these fields (:func:`parse_message`). The warden's process, which sends plain dictionaries, does not import this
module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TypeAlias, get_args

from elastic_core.events import Field
from elastic_core.exit_codes import describe_exit
from elastic_core.warden.channel import Message


@dataclass(frozen=True, slots=True)
class Spawned:
    """A worker's program runs."""

    tag: int
    pid: int
    warm: bool = False  # whether the starter forked it
    unlearned: int = 0  # modules that an earlier worker imported and the starter has not


@dataclass(frozen=True, slots=True)
class StartedFresh:
    """A worker that the starter should have forked starts as a fresh process; ``why`` is one line."""

    tag: int
    why: str


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """A worker could not be started; ``error`` is the reason: ``[Errno 2] No such file or directory: 'x'``."""

    tag: int
    error: str


@dataclass(frozen=True, slots=True)
class Exited:
    """A started worker has ended; ``returncode`` is :class:`subprocess.Popen`'s, negative for a signal."""

    tag: int
    pid: int
    returncode: int
    at: float = field(default=0.0, compare=False)
    """When the warden reaped it, in seconds on the monotonic clock of the host."""


@dataclass(frozen=True, slots=True)
class Signalled:
    """One step of a stop: the workers whose process groups got a signal, or the single processes that got one."""

    signum: int
    pids: tuple[int, ...]
    names: tuple[str, ...] = ()  # of these processes, where they are no workers or are killed


@dataclass(frozen=True, slots=True)
class StopCompleted:
    """The answer to a ``Warden.stop`` and to those before it: only services are left below the warden."""

    serial: int  # the number of the stop, counted from 1


@dataclass(frozen=True, slots=True)
class Stuck:
    """A process has not ended 15 s after SIGKILL; it waits in the kernel in ``wchan``, if that is known. Sent once."""

    pid: int
    name: str
    wchan: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """The dead-man's switch has killed all workers: only services are left below the warden.

    No Exited is sent for these workers, and no SpawnFailed for those that were still to be started. The StopCompleted
    of a stop that was requested meanwhile comes after this event.
    """


@dataclass(frozen=True, slots=True)
class StarterReady:
    """The starter has imported modules, and forks workers. Sent again each time that it has imported more modules."""

    pid: int  # another one if another process has replaced the starter
    text: str  # in one sentence, for people
    more: Mapping[str, Field] = field(default_factory=dict)  # fields of the event for programs
    complete: bool = True  # False if it is to import more when it is idle, or at Warden.complete_starter


@dataclass(frozen=True, slots=True)
class StarterFailed:
    """There is no starter and will be none; ``reason`` is the traceback of an import that raised, or a line."""

    reason: str


@dataclass(frozen=True, slots=True)
class StarterDied:
    """The starter is dead. The warden starts another one; the processes that it had forked live on."""

    how: str  # ``exited with code 1``, ``was killed by SIGKILL``


StarterEvent: TypeAlias = StarterReady | StarterFailed | StarterDied


@dataclass(frozen=True, slots=True)
class ServiceEnded:
    """A service has ended, by itself or by request; ``returncode`` as in :class:`Exited`."""

    tag: int
    returncode: int | None  # None if it could not be started
    error: str = ""  # why not


@dataclass(frozen=True, slots=True)
class WardenSignalled:
    """The warden received a request to end, which it leaves to the agent: from a worker, whose parent it is, or from a
    scheduler that signals all processes of a job.
    """

    signum: int


WorkerEvent: TypeAlias = (
    Spawned | StartedFresh | SpawnFailed | Exited | Signalled | StopCompleted | Stuck | Fenced | WardenSignalled
)


@dataclass(frozen=True, slots=True)
class WardenDied:
    """The warden itself is dead, and every process below it was killed. The last event; the warden does not send it."""

    reason: str


WardenEvent: TypeAlias = WorkerEvent | StarterEvent | ServiceEnded | WardenDied

_CLASSES = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower(): kind
    for kind in get_args(WorkerEvent | StarterEvent | ServiceEnded)
}
"""By the name of the message: ``spawn_failed``."""


def parse_message(message: Message) -> WardenEvent:
    """Make the event that a message of the warden stands for.

    Raises:
        AssertionError: The message has no known name, or its other keys are not the fields of that event.
    """
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in message.items()}
    kind = _CLASSES.get(str(values.pop("event", "")))
    if kind is None or values.keys() != {field.name for field in fields(kind)}:
        raise AssertionError(f"the warden sent {message!r}")
    parsed: WardenEvent = kind(**values)
    return parsed


def warden_death(returncode: int | None) -> WardenDied:
    """Make the event of the warden's own end; ``returncode`` is None if it only closed its connection."""
    return WardenDied("it closed its connection" if returncode is None else f"it {describe_exit(returncode)}")
