"""The two gates of a node, as plugins see them: before it joins its job, and before workers start; and the run joined.

``elastic_before_join`` gets a :class:`JoinGate`, ``elastic_run_starts`` a :class:`JoinedRun`, whose ``leave`` is that
of :class:`HostEnd` and whose ``look`` returns an :class:`AgentState`, and ``elastic_before_start`` a
:class:`StartGate`.
"""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastic_core.events import Event

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_core.config.run import RunConfig
    from elastic_core.decision_log import Decision
    from elastic_core.incidents import Incident
    from elastic_core.monitors import WorkerView
    from elastic_core.progress import Progress
    from elastic_core.protocol.failure_detector import NodeView
    from elastic_core.protocol.node import NodeState
    from elastic_core.protocol.roster import NodeInfo
    from elastic_core.rendezvous.backend import RendezvousBackend

CHECK_MAX_SECONDS = 60.0  # that a check may take from one :meth:`JoinGate.wait` to the next
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class JoinCheck:
    """A check that a plugin has added to the gate."""

    call: Callable[[], object]
    plugin: str
    quick: bool
    again: bool


@dataclass
class JoinGate:
    """The gate that this node passes before it joins its job (rule L17).

    Attributes:
        config: The run.
        publish: Publishes an event of this node. Any thread may call it.
        patience: The seconds after which the job needs this node no more; infinite where ``closed`` tells that.
        closed: Set once no check is wanted: all have returned, or this node does not join, after a signal, ``elastic
            drain``, a notice that its host ends, or the end of its run. A check then ends its work and returns.
    """

    config: RunConfig
    publish: Callable[[Event], None] = field(default=lambda event: None, repr=False)
    patience: float = math.inf
    closed: threading.Event = field(default_factory=threading.Event, repr=False)
    checks: list[JoinCheck] = field(default_factory=list, repr=False)
    plugin: str = ""  # whose hook is being called
    _due: float = field(default=math.inf, repr=False)  # when the check that is called has taken too long

    def add(self, check: Callable[[], object], *, quick: bool = False, again: bool = False) -> None:
        """Have ``check`` called before this node joins. The node joins once all checks of all plugins have returned.

        A check keeps this host out by raising :class:`elastic_core.UnhealthyNodeError`: the agent then ends with exit
        code 72, message and hint. After any other exception the node joins, and the exception is reported. Checks are
        called one after another, each on a thread of its own. One that takes longer than ``CHECK_MAX_SECONDS`` without
        a call of :meth:`wait` keeps this host out, too.

        Args:
            check: Called without arguments.
            quick: Whether it takes milliseconds. During other checks the roster shows the node, so that ``elastic
                drain`` finds it.
            again: Whether a node whose host was excluded leaves its job, and passes this gate again.
        """
        self.checks.append(JoinCheck(check, self.plugin, quick, again))

    def wait(self, seconds: float, others: Sequence[Any] = ()) -> list[Any]:
        """Return which of the ``others`` can be read, as soon as one can; none after the time, or once closed.

        For the thread of the check. ``others`` are as for :func:`select.select`.
        """
        deadline, self._due, readable = time.monotonic() + seconds, math.inf, list[Any]()
        while not readable and not self.closed.is_set() and (left := deadline - time.monotonic()) > 0:
            if others:
                readable, _, _ = select.select(others, [], [], min(left, _LOOK_SECONDS))
            else:
                self.closed.wait(left)
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
    """The state of an agent, to show it. Instants are of the monotonic clock, ages in seconds.

    Attributes:
        now: When this was read.
        node: The state from which the decisions of this node follow.
        since: When that last changed.
        waits_for: For which nodes the leader waits, in words; '' for none, and on other nodes.
        nodes: What the leader knows of each node, by id; empty on other nodes.
        contact_at: When the store last answered.
        failing: The operations in which the store does not answer.
        incident: The newest failure that is known here.
        workers: The workers here of the current round, or of the last.
        started_at: When that round started.
        progress: The newest progress of their ranks, and its age.
        checkpoint: The step of the last checkpoint, and its age.
    """

    now: float
    node: NodeState
    since: float
    waits_for: str
    nodes: Mapping[str, NodeView]
    contact_at: float
    failing: Collection[str]
    incident: Incident | None
    workers: Sequence[WorkerView]
    started_at: float
    progress: Mapping[int, tuple[Progress, float]]
    checkpoint: tuple[int | None, float] | None


class HostEnd:
    """Passes the notices of plugins that this host ends to one listener at a time.

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
    """The gate before the workers of a round start on this node (rule L18).

    Attributes:
        round: The number of the round; a lower one before it is known.
        run_uid: The run's own random id.
        waited: For how many seconds the workers have waited for plugins; 0 before they are to start.
    """

    round: int
    run_uid: str = ""
    waited: float = 0.0
