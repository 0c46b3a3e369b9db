"""Agents without workers: core's own join, session and mind over a real store; and torch's handler in torchrun's loop.

What an agent tells is when it held a rank, in a world of how many. Workers are up, or gone, as soon as that is wanted.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from benchmarks.counting import CountedBackend, Tally, counted
from elastic_core.agent.probing import neighbours
from elastic_core.config.run import Timing
from elastic_core.incidents import Action, Incident, IncidentKind, Verdict
from elastic_core.protocol.codec import decode_entry, decode_row, encode_entry, encode_row
from elastic_core.protocol.entries import Closed, Offer, Open, Round, place
from elastic_core.protocol.ledger import compose, open_ledger
from elastic_core.protocol.node import NodeState, failed_round, row_of, step
from elastic_core.protocol.node_events import (
    Effect,
    Exit,
    Leaving,
    MakeOffer,
    NodeEvent,
    Offered,
    Probed,
    Progressed,
    Start,
    Stop,
    WorkerFailed,
    WorkersGone,
)
from elastic_core.protocol.roster import NodeInfo, NodeRow, Slots
from elastic_core.protocol.settings import Agreement, Settings, Versions
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.session.join import Applicant, join
from elastic_core.session.runtime import RUNTIME
from elastic_core.session.session import Session
from elastic_core.session.state import SessionCalls

TICK = 2.0
"""Seconds between two signs of an agent's loop."""
MONITOR = 0.1
"""Seconds between two looks of torchrun's loop (``--monitor-interval``)."""
LAST_CALL = 1.0
"""Seconds that torchrun, tuned, waits for one more (``last_call_timeout``; 30 by default)."""
JOIN = 600.0
"""Seconds that a node waits for the others."""

Held = Callable[[int, float, int], None]
"""Told by an agent: its number, when it held a rank (seconds, monotonic), and the world's size in nodes."""


class Agent(ABC):
    """One node, connected to the store but not in the rendezvous yet.

    Args:
        number: Which one.
        held: Called whenever it holds a rank, on any thread.

    Attributes:
        came: When it began to take part (seconds, monotonic).
    """

    def __init__(self, number: int, held: Held) -> None:
        self.number, self._held = number, held
        self.tally = Tally()
        self.came = math.inf

    @abstractmethod
    def arrive(self) -> None:
        """Take part in the rendezvous; may block."""

    @abstractmethod
    def fail(self) -> None:
        """Let a worker fail; with torchrun, whose agents tell each other nothing, let those of every node fail."""

    @abstractmethod
    def leave(self) -> None:
        """Go away."""

    def requests(self) -> Counter[tuple[str, str]]:
        """Return how many requests of each kind the agent has sent to its store."""
        return self.tally.total()


def warm_up() -> None:
    """Do once what an agent finds out once in its process: here many share one, and would all do it at once."""
    versions = Versions(python="3", torch="2")
    info = NodeInfo(node_id="", host="", host_id="", slot=0, local_world_size=1, role="", versions=versions)
    decode_row(encode_row(NodeRow(info=info)))
    agreement = Agreement(min_nodes=1, max_nodes=1, max_restarts=0)
    settings = Settings(agreement=agreement, timing=Timing(resize_wait=0.0), versions=versions, host="")
    opening = Open(scheduler_uid=None, settings=settings)
    opened = compose(None, opening, entry_id="", author="", now=0.0, run="")
    first = Round(number=1, offer=Offer("", 1, ""))
    for entry in (opened, compose(open_ledger(opened, 0.0), first, entry_id="", author="", now=0.0)):
        decode_entry(encode_entry(entry))


class ElasticAgent(Agent):
    """The agent's loop, on whatever thread brings the news.

    Args:
        number: Which one.
        held: As above.
        connections: Four: the agent's own, and one for each of its session's threads.
        nodes: The least and the most of the job.
    """

    def __init__(self, number: int, held: Held, connections: list[RendezvousBackend], nodes: tuple[int, int]) -> None:
        super().__init__(number, held)
        self._store = CountedBackend(connections[0], self.tally, connections[1:])
        versions = Versions(python="3", torch="2")
        node_id = uuid.uuid4().hex[:12]
        self._info = NodeInfo(
            node_id=node_id,
            host=f"node{number}.cluster.example",
            host_id=uuid.uuid5(uuid.NAMESPACE_DNS, str(number)).hex,
            slot=0,
            slots=Slots(time.monotonic_ns()),
            local_world_size=8,
            role="default",
            versions=versions,
            address="127.0.0.1",
            port=29500,
        )
        agreement = Agreement(min_nodes=nodes[0], max_nodes=nodes[1], max_restarts=1000)
        settings = Settings(
            agreement=agreement, timing=Timing(resize_wait=0.0), versions=versions, host=str(self._info)
        )
        self._runtime = RUNTIME
        self._applicant = Applicant(info=self._info, settings=settings, offer=self._offer())
        self._turn = threading.Lock()
        self._news: deque[NodeEvent] = deque()
        self._state: NodeState | None = None
        self._row: object = None
        self._session: Session | None = None

    def arrive(self) -> None:
        """Join, and follow the ledger from there."""
        self.came = time.monotonic()
        joined = join(self._store, self._applicant, self._runtime)
        assert not isinstance(joined, Closed)
        self._state = NodeState(row=NodeRow(info=self._info, offer=self._applicant.offer), ledger=joined.ledger)
        self._row = joined.row
        calls = SessionCalls(post=self._post, publish=lambda event: None, judge=_judge, crashed=_crashed)
        self._session = Session(self._store, joined, self._runtime, calls)
        self._tell()
        self._session.start()

    def tick(self) -> None:
        """Its loop is alive."""
        if self._session is not None:
            self._session.tick()

    def fail(self) -> None:
        """One of its workers has failed."""
        assert self._state is not None
        number, info = self._state.row.round, self._info
        incident = Incident(
            kind=IncidentKind.WORKER_FAILED,
            round=number,
            node_id=info.node_id,
            host=info.host,
            rank=0,
            exit_code=1,
            message="RuntimeError: boom",
            detail="Traceback (most recent call last)\n" * 10,
        )
        self._post(WorkerFailed(incident))

    def leave(self) -> None:
        """Leave as on SIGTERM: workers stop first."""
        self._post(Leaving("received SIGTERM", 143))

    @property
    def leaders(self) -> bool:
        """Return True if the agent is the leader."""
        return self._state is not None and self._state.ledger.leader == self._info.node_id

    def _post(self, event: NodeEvent) -> None:
        """Take an event, and those that follow from it; one thread at a time."""
        self._news.append(event)
        with self._turn:
            while self._news:
                self._handle(self._news.popleft())

    def _handle(self, event: NodeEvent) -> None:
        assert self._state is not None
        assert self._session is not None
        before = self._state
        self._state, effects = step(before, event)
        failed = failed_round(before, self._state)
        self._tell()
        for effect in effects:
            self._do(effect)
        if failed is not None:  # a look at the store, and an answer; connections to peers are no matter of the store's
            done = Probed(failed.number, ())
            self._session.look_up(neighbours(failed, self._info.node_id), lambda known: self._post(done))

    def _tell(self) -> None:
        assert self._state is not None
        assert self._session is not None
        if (row := row_of(self._state)) != self._row:
            self._row = row
            self._session.publish_row(replace(row, slots=Slots(time.monotonic_ns())))

    def _do(self, effect: Effect) -> None:
        assert self._session is not None
        match effect:
            case Start(current, _):
                mine = place(current.members, self._info.node_id)
                self._held(self.number, time.monotonic(), mine.group_world_size)
                self._news.append(Progressed(current.number))
            case Stop():
                self._news.append(WorkersGone())
            case MakeOffer():
                self._news.append(Offered(self._offer()))
            case Exit():
                threading.Thread(target=self._session.close, args=(10.0,), daemon=True).start()

    def _offer(self) -> Offer:
        return Offer("127.0.0.1", 29501, self._runtime.new_id(), hosted=True)


def _judge(incident: Incident, history: object) -> Verdict:
    return Verdict(Action.RESTART, "as always")


def _crashed(error: BaseException) -> None:
    raise error


class TorchAgent(Agent):
    """torchrun's loop around torch's handler: rendezvous, watch for newcomers, rendezvous again.

    Args:
        number: Which one.
        held: As above.
        store: Its connection, a TCPStore.
        run_id: The job.
        nodes: The least and the most of the job.
    """

    def __init__(self, number: int, held: Held, store: Any, run_id: str, nodes: tuple[int, int]) -> None:
        from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
        from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

        super().__init__(number, held)
        counts = self.tally.column()

        class Backend(C10dRendezvousBackend):
            def _call_store(self, store_op: str, *args: Any, **kwargs: Any) -> Any:
                return counted(counts, store_op, super()._call_store, store_op, *args, **kwargs)

        timeout = RendezvousTimeout(join=timedelta(seconds=JOIN), last_call=timedelta(seconds=LAST_CALL))
        backend = Backend(store, run_id)
        self._handler = DynamicRendezvousHandler.from_backend(
            run_id, store, backend, nodes[0], nodes[1], local_addr="127.0.0.1", timeout=timeout
        )
        self._again = threading.Event()

    def arrive(self) -> None:
        """Run the loop in a thread."""
        threading.Thread(target=self._run, daemon=True).start()

    def fail(self) -> None:
        """Its collective has failed, and the loop has seen it at once."""
        self._again.set()

    def leave(self) -> None:
        """Raise: this agent waits for a lost node until its heartbeats are missed, or closes the rendezvous."""
        raise NotImplementedError

    def _run(self) -> None:
        self.came = time.monotonic()
        while True:
            info = self._handler.next_rendezvous()
            self._held(self.number, time.monotonic(), info.world_size)
            while not self._again.wait(MONITOR) and self._handler.num_nodes_waiting() == 0:
                pass
            self._again.clear()
