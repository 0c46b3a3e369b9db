"""The agent of a node, as plugins see it: its gates before it joins and before workers start, its run, and its end."""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_core.events import Event, Field, describe_duration
from elastic_core.threads import asked

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_core.config.run import RunConfig
    from elastic_core.decision_log import Decision
    from elastic_core.incidents import Failure, Incident
    from elastic_core.monitors import WorkerView
    from elastic_core.progress import Progress
    from elastic_core.protocol.failure_detector import NodeView
    from elastic_core.protocol.node import NodeState
    from elastic_core.protocol.roster import NodeInfo
    from elastic_core.rendezvous.backend import RendezvousBackend

ABORT_SECONDS = 5.0  # for the work of a rescue to return, once it was told to stop
LOOK_SECONDS = 0.05  # between two looks: a signal that another thread takes ends no wait of the main thread by itself
LEAST_FOR_SHARE = 60.0  # seconds of a run from which on its last line has a percentage
CHECK_MAX_SECONDS = 60.0  # that a check may take from one :meth:`JoinGate.wait` to the next
_Found = TypeVar("_Found")


def wait_for_any(others: Sequence[Any], seconds: float, is_over: Callable[[], bool]) -> list[Any]:
    """Return which of the others can be read, as soon as one can; none after the time, or once ``is_over()``."""
    deadline, readable = time.monotonic() + seconds, list[Any]()
    while not readable and not is_over() and (left := deadline - time.monotonic()) > 0:
        readable, _, _ = select.select(others, [], [], min(left, LOOK_SECONDS))
    return readable


@dataclass(frozen=True, slots=True)
class JoinCheck:
    """A check that a plugin has added to the gate."""

    call: Callable[[], object]
    plugin: str
    quick: bool
    again: bool


@dataclass
class JoinGate:
    """The gate that this node passes before it joins its job (rule L17), for ``elastic_before_join``."""

    config: RunConfig
    publish: Callable[[Event], None] = field(default=lambda event: None, repr=False)
    """Publishes an event of this node. Any thread may call it."""
    patience: float = math.inf  # seconds after which the job needs this node no more; infinite if ``closed`` tells that
    closed: threading.Event = field(default_factory=threading.Event, repr=False)
    """Set once no check is wanted: all have returned, or this node does not join, after a signal, ``elastic drain``, a
    notice that its host ends, or the end of its run. A check then ends its work and returns."""
    checks: list[JoinCheck] = field(default_factory=list, repr=False)
    plugin: str = ""  # whose hook is being called
    _due: float = field(default=math.inf, repr=False)  # when the check that is called has taken too long

    def add(self, check: Callable[[], object], *, quick: bool = False, again: bool = False) -> None:
        """Have ``check`` called before this node joins. The node joins once all checks of all plugins have returned.

        A check keeps this host out by raising :class:`elastic_core.UnhealthyNodeError`: the agent then ends with exit
        code 72, message and hint. After any other exception the node joins, and the exception is reported. Checks are
        called one after another, each on a thread of its own. One that takes longer than ``CHECK_MAX_SECONDS`` without
        a call of :meth:`wait` keeps this host out, too.

        A ``quick`` check takes milliseconds. During other checks the roster shows the node, so that ``elastic drain``
        finds it. With ``again``, a node whose host was excluded leaves its job, and passes this gate again.
        """
        self.checks.append(JoinCheck(check, self.plugin, quick, again))

    def wait(self, seconds: float, others: Sequence[Any] = ()) -> list[Any]:
        """Return which of the ``others`` can be read, as soon as one can; none after the time, or once closed.

        For the thread of the check. ``others`` are as for :func:`select.select`.
        """
        self._due = math.inf
        readable = wait_for_any(others, seconds, self.closed.is_set)
        self.start_clock()
        return readable

    # For the agent

    def start_clock(self) -> None:
        """Give the check ``CHECK_MAX_SECONDS`` from now."""
        self._due = time.monotonic() + CHECK_MAX_SECONDS

    def seconds_left(self) -> float:
        """Return for how long the check may go on without a call of :meth:`wait`; 0 if it has taken too long."""
        return min(max(0.0, self._due - time.monotonic()), CHECK_MAX_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRun:
    """A run that this node has joined; ``hookspecs.elastic_run_starts`` describes the fields."""

    config: RunConfig
    run_uid: str
    node: NodeInfo
    log_dir: Path | None = None
    leave: Callable[[str, float], None] = lambda why, seconds: None
    publish: Callable[[Event], None] = lambda event: None
    look: Callable[[], AgentState]
    decisions: Callable[[], Sequence[Decision]] = tuple
    connect: Callable[[], RendezvousBackend] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """The state of an agent, to show it. Instants are of the monotonic clock, ages in seconds."""

    now: float  # when this was read
    node: NodeState  # from which the decisions of this node follow
    since: float  # when that last changed
    waits_for: str  # for which nodes the leader waits, in words; '' for none, and on other nodes
    nodes: Mapping[str, NodeView]  # what the leader knows of each node, by id; empty on other nodes
    contact_at: float  # when the store last answered
    failing: Collection[str]  # the operations in which the store does not answer
    incident: Incident | None  # the newest failure that is known here
    workers: Sequence[WorkerView]  # those here of the current round, or of the last
    started_at: float  # when that round started
    progress: Mapping[int, tuple[Progress, float]]  # the newest of their ranks, and its age
    checkpoint: tuple[int | None, float] | None  # the step of the last checkpoint, and its age


class HostEnd:
    """Passes the notices of plugins that this host ends (:attr:`JoinedRun.leave`) to one listener at a time.

    They count for every node that the agent becomes (rule L17). A listener takes why the host ends, in how many
    seconds, and at which instant of the monotonic clock that was said.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._lock = now, threading.Lock()
        self._said: tuple[str, float, float] | None = None  # the earliest end
        self._listener: Callable[[str, float, float], None] | None = None

    def leave(self, why: str, seconds: float) -> None:
        """Say that this host is taken away in so many seconds. Any thread may call this."""
        said = (why, float(seconds), self._now())
        with self._lock:
            if self._said is None or said[1] + said[2] < self._said[1] + self._said[2]:
                self._said = said
            listener = self._listener
        if listener is not None:
            listener(*said)

    def set_listener(self, listener: Callable[[str, float, float], None]) -> None:
        """Pass later notices to ``listener``, and at once the earliest end so far; it must return at once."""
        with self._lock:
            self._listener, said = listener, self._said
        if said is not None:
            listener(*said)


@dataclass(frozen=True, slots=True)
class StartGate:
    """The gate before the workers of a round start on this node (rule L18), for ``elastic_before_start``."""

    round: int  # its number; a lower one before it is known
    run_uid: str = ""  # the run's own random id
    waited: float = 0.0  # for how many seconds the workers have waited for plugins; 0 before they are to start


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The counters of a run, as this node knows them."""

    job: str  # the job's id
    run: str  # the run's own id
    node: str  # the name of this node
    rounds: int
    restarts: int
    max_restarts: int | None
    nodes_lost: int  # how often
    seconds: float  # since the run was opened
    interrupted_seconds: float  # of these, how long the workers of this node did not run between two rounds
    failures: Sequence[Failure] = ()  # the newest that spent a restart, oldest first
    logs: Path | None = None  # None where none are kept
    stop_facts: Mapping[str, Mapping[str, Field]] = field(default_factory=dict)
    """The findings of monitors after the last planned stop, by name."""

    def describe(self) -> str:
        """Return it in one line: ``2 restarts, processes were down for 11.2 s of 3.0 h (up 99.9 %), logs in /logs``."""
        counts = [(self.restarts, "restart"), (self.nodes_lost, "lost node")]
        parts = [f"{count} {what}{'s' if count > 1 else ''}" for count, what in counts if count]
        if self.interrupted_seconds > 0:
            parts.append(f"processes were down for {describe_duration(self.interrupted_seconds)}")
            if self.seconds >= LEAST_FOR_SHARE:
                share = 100 * (1 - min(1.0, self.interrupted_seconds / self.seconds))
                parts[-1] += f" of {describe_duration(self.seconds)} (up {share:.1f} %)"
        if self.logs is not None:
            parts.append(f"logs in {self.logs}")
        return ", ".join(parts)


@dataclass(frozen=True)
class AgentEnd:
    """The end of an agent, with which plugins lose what they keep in memory for workers (``elastic_agent_ends``)."""

    node: str  # the name of this node
    publish: Callable[[Event], None] = field(repr=False)  # publishes an event of this node
    received: Callable[[], str] = field(default=str, repr=False)
    """Returns which signal that ends the agent has come, in words; '' for none."""
    is_last: Callable[[], bool] = field(default=lambda: True, repr=False)
    """Returns whether no other node continues from the memory of this node: the job has failed, its store is lost, or
    the last node leaves. It may ask the store."""
    failed: bool = False  # whether the agent has raised because of a defect

    def run(self, work: Callable[[threading.Event], _Found], patience: float) -> tuple[_Found, str]:
        """Return the result of ``work(stop)``, which runs on another thread, and why it was told to stop: '' if not.

        ``stop`` is set after a signal that ends the agent, also after an earlier one, and after ``patience`` seconds.
        Then the work has 5 s to return.

        Raises:
            TimeoutError: It has not returned by then.
        """
        stop, why, until = threading.Event(), self.received(), time.monotonic() + patience
        if why:
            stop.set()
            until = time.monotonic() + ABORT_SECONDS
        outcome = asked(partial(work, stop), name="elastic-rescue")
        while not wait([outcome], LOOK_SECONDS).done:
            overdue = time.monotonic() >= until
            if overdue and why:
                raise TimeoutError(f"{why}, and the disk does not answer")
            found = f"writing has taken {patience:.0f} s" if overdue else self.received()
            if found and not why:
                why, until = found, time.monotonic() + ABORT_SECONDS
                stop.set()
        return outcome.result(), why
