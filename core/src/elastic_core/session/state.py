"""The state that the threads of a session share, and the functions of the agent that they call.

The threads do not know each other. They meet here: a thread changes the state and notifies ``wake``, for which the
writer waits, or ``pulse``, for which the heartbeat waits. The reader waits for the store. The writer's rows and jobs,
and the connections of all threads, are part of the state.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from elastic_core.decision_log import DecisionLog
from elastic_core.errors import (
    ElasticError,
    RendezvousConnectionError,
    RendezvousStateError,
    StoreLostError,
    in_one_line,
)
from elastic_core.events import Event, Level
from elastic_core.incidents import History, Incident, Verdict
from elastic_core.protocol.entries import Leader
from elastic_core.protocol.failure_detector import DeposedLeader
from elastic_core.protocol.ledger import HistoryChangedError, Ledger, compose
from elastic_core.protocol.node_events import NodeEvent, StoreLost
from elastic_core.protocol.roster import NodeInfo, NodeRow, Reached
from elastic_core.questions import AskedQuestion, NodeAnswer
from elastic_core.rendezvous.backend import STRANGER_HINT, RendezvousBackend
from elastic_core.session.contact import (
    FENCE_SHARE,
    RETRY_FIRST,
    RETRY_MOST,
    Backoff,
    Contact,
    StoreCall,
    call_of,
    may_be_renewed,
    unanswered,
)
from elastic_core.session.join import Joined
from elastic_core.session.ledger_reader import check_head
from elastic_core.session.runtime import Runtime


@dataclass(frozen=True, slots=True)
class SessionCalls:
    """The agent's functions that a session calls, from its own threads. Most return at once."""

    post: Callable[[NodeEvent], None]
    publish: Callable[[Event], None]
    judge: Callable[[Incident, History], Verdict]  # asks the failure policies; returns within its own time limit
    crashed: Callable[[BaseException], None]  # a thread met a defect; the agent ends with it
    node_gone: Callable[[NodeInfo], bool] | None = None
    """Asks the plugins whether a node is known to be gone for good, with a time limit; None where there is none to ask.
    This and ``sum_up`` are called on threads of their own."""
    reached: Callable[[], Reached | None] = lambda: None  # how far this node's workers have come
    sum_up: Callable[[AskedQuestion, Sequence[NodeAnswer], str], str] = lambda question, answers, before: "null"
    """Has plugins sum up answers, given the former report of that name; both reports are JSON. It has a time limit."""
    decisions: DecisionLog = field(default_factory=DecisionLog)  # takes what this node decides as leader


class SessionState:
    """Which ledger was read last, whether there is contact, what is to be written, and whether the session goes on.

    ``store`` is what the node joined over; each thread makes its own connection.
    """

    def __init__(self, store: RendezvousBackend, joined: Joined, runtime: Runtime, calls: SessionCalls) -> None:
        self.store, self.runtime, self.calls = store, runtime, calls
        self.info = joined.row.info
        self.ledger = joined.ledger  # What the node has read. Only the reader changes it, with ``wake`` held.
        self.contact = Contact(runtime.now(), calls.publish)
        self.wake = runtime.condition()  # wakes the writer, and guards what several threads change
        self.pulse = runtime.condition()  # wakes the heartbeat, and guards its connection
        self.reported_at: float | None = None
        """When this node reported an incident that the leader has to answer (rule L2); None if it has answered."""
        self.heard: DeposedLeader | None = None  # what the last leader's heartbeats were when this node took its place
        self.gap_at = -math.inf
        """When this node had the store back after it had last been cut off; -inf if it never was."""
        self.stopping = runtime.event()
        self.lost = False  # whether this node will read no further entry
        self.connections = SessionConnections(self)
        self.writer = RowWriter(self, joined.row)

    @property
    def node_id(self) -> str:
        """The node's id."""
        return self.info.node_id

    @property
    def over(self) -> bool:
        """True if the threads are to end."""
        return self.stopping.is_set() or self.lost

    def is_cut_off(self, share: float = 1.0) -> bool:
        """Return True if this node has had no contact for as long as its fence takes, or for this share of that time.

        Such a node decides nothing, and asks for no place in a round (rule S4).
        """
        fence_after = self.ledger.settings.timing.fence_after
        return self.runtime.now() - self.contact.known_at >= share * FENCE_SHARE * fence_after

    def follow(self, ledger: Ledger) -> None:
        """Go on from a ledger that has grown, which answers every report made before."""
        with self.wake, self.pulse:  # together, since the writer may report and the heartbeat may judge meanwhile
            self.ledger, self.connections.unread_since, self.reported_at = ledger, None, None
            self.contact.live(ledger.is_live)
            self.pulse.notify()

    def append_leader(self, store: RendezvousBackend, ledger: Ledger, leader: str, why: str) -> bool:
        """Append a LEADER entry, and publish it; return False when another node has appended an entry first.

        Raise HistoryChangedError if the store has lost the entry that this one follows.
        """
        new_id, now = self.runtime.new_id(), self.runtime.now()
        entry = compose(ledger, Leader(why=why), entry_id=new_id, author=self.node_id, now=now, leader=leader)
        if not store.append(ledger.head.link, entry.link, self.runtime.codec.encode_entry(entry)):
            check_head(store, ledger, self.runtime.codec)
            return False
        self.calls.publish(Event("leader_changed", f"{leader} decides from here on: {why}", Level.DEBUG))
        return True

    def report_sent(self) -> None:
        """Record that the store has this node's report of an incident, and that the leader owes an entry (rule L2)."""
        with self.pulse:
            self.reported_at = self.runtime.now()
            self.pulse.notify()

    def give_up(self, exc: ElasticError) -> None:
        """End the session, since the store is lost: healthy workers may finish without it."""
        self.end(StoreLost(), Event("store_lost", f"the store is lost: {in_one_line(exc)}", Level.ERROR))

    def end(self, end: NodeEvent, told: Event) -> None:
        """End the session: heartbeats stop, and no operation counts as contact any more.

        Should others go on without this node, they wait for the fence, which stops the workers here first (rule S4).
        """
        with self.wake:
            first, self.lost = not self.over, True
            self.wake.notify()
        self.contact.end()
        with self.pulse:
            self.pulse.notify()
        self.writer.done.set()
        if first and self.ledger.closed is None:
            self.calls.publish(told)
            self.calls.post(end)

    def thread(self, name: str, body: Callable[[], object]) -> threading.Thread:
        """Return a thread, not started yet, that calls ``body``, and reports a defect in it to the agent."""

        def guarded() -> None:
            try:
                body()
            except Exception as exc:
                self.calls.crashed(exc)

        return self.runtime.thread(target=guarded, name=f"elastic-{name}", daemon=True)


THREADS = ("reader", "writer", "heartbeat")  # the threads with a connection of their own


class SessionConnections:
    """The connections of :data:`THREADS`, which ``state.wake`` and ``state.pulse`` guard together."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self.store_gone = False
        """True if an embedded store is known to be gone, so that no node can go on elsewhere (rule S4)."""
        self._checked_at = self.heartbeat_at = state.runtime.now()
        """When answers were last checked, and when the last heartbeat that was answered began."""
        self.made: dict[str, RendezvousBackend | None] = dict.fromkeys(THREADS)  # the connection of each thread
        self._connecting: dict[str, float | None] = dict.fromkeys(THREADS)
        """Since when each thread makes a connection; None while it does not."""
        self.unread_since: float | None = None
        """Since when heartbeats bring that the store has other entries than this node has read."""
        self.doubt = False
        """True if the store may have lost entries: the reader compares on its next connection, or does so now (S3)."""

    def connect(self, who: str) -> RendezvousBackend | None:
        """Make the thread's connection, however long it takes; return None when the session ends instead.

        A leader that finds the store back first gives others ``lost_after`` to be back (rule L1): they try more often.
        """
        state = self._state
        backoff = Backoff(most=min(RETRY_MOST, state.ledger.settings.timing.lost_after / 3))
        while not state.over:
            try:
                self._connecting[who] = state.runtime.now()
                try:
                    store = state.store.connect()
                finally:
                    self._connecting[who] = None
                with state.wake, state.pulse:
                    self.made[who] = store
                    state.pulse.notify()
                if not state.over:
                    return store
                self.close(who)
            except RendezvousConnectionError as exc:
                if state.store.embedded:
                    self.store_gone = self.store_gone or isinstance(exc, StoreLostError)
                    state.give_up(exc)
                    return None
                self.failed(who, exc)
                state.stopping.wait(backoff.failed())
            except RendezvousStateError as exc:
                state.give_up(exc)
                return None
        return None

    def close(self, who: str) -> None:
        """Close the thread's connection, if it has one; errors of the store are ignored."""
        with self._state.wake, self._state.pulse:
            store, self.made[who] = self.made[who], None
        if store is not None:
            with suppress(RendezvousConnectionError, RendezvousStateError):
                store.close()

    def compare(self) -> None:
        """Have the reader compare the store's history with ours (S3), on a new connection: its own may be asleep."""
        with self._state.wake:
            connection, self.doubt = (None if self.doubt else self.made["reader"]), True
        if connection is not None:
            connection.close()

    def failed(self, who: str, exc: ElasticError) -> None:
        """Record that an operation of this thread failed."""
        if not (self._state.stopping.is_set() or self._state.store.embedded):
            self._state.contact.failed(who, exc)

    def check_answers(self, endpoint: str, within: float) -> None:
        """See :meth:`Session.check_answers`; ``within`` is in seconds."""
        state = self._state
        now, timing = state.runtime.now(), state.ledger.settings.timing
        before, self._checked_at = self._checked_at, now
        if now - before >= 2 * timing.beat_interval + 1.0:  # this agent was frozen, and not the store
            return
        calls = [StoreCall(who, began) for who, began in self._connecting.items() if began is not None]
        unread = {"reader": self.unread_since}
        calls += filter(None, (call_of(who, store, unread.get(who)) for who, store in self.made.items()))
        for call in calls:
            if (silence := now - call.due) < within:
                continue
            error = unanswered(call, silence, endpoint, FENCE_SHARE * timing.fence_after)
            state.contact.failed(call.who, error, surely=True)
            if (store := call.store) is not None and may_be_renewed(call, silence, self.heartbeat_at, within=within):
                # on a separate thread, once: closing may take long without an answer
                state.thread("hang-up", store.close).start()


Job = Callable[[RendezvousBackend], object]
"""Is called with the writer's connection, and from the beginning with the next one if that connection breaks."""


class RowWriter:
    """The writer's thread. Any thread gives it rows and jobs, which ``state.wake`` guards.

    ``row`` is the one with which the node has entered, as revision 0.
    """

    def __init__(self, state: SessionState, row: NodeRow) -> None:
        self._state = state
        self.done = state.runtime.event()
        """Set when nothing is left to be written: this node has left, or there is no store any more."""
        self._row = row
        self._unread: tuple[str, ...] = ()  # the nodes whose rows this one cannot read; part of every row
        self._revision = 0
        self._due = 0.0  # when the newest revision is to be sent
        self._sent = 0  # the least that the store has; -1 once it is behind
        self._unlisted = False  # whether the store has lost the row, which has to be entered anew
        self._reported: Incident | None = None  # the incident in the last row that was written
        self._jobs: list[Job] = []

    def publish(self, row: NodeRow, within: float = 0.0) -> None:
        """Make the roster say this ``within`` seconds; returns at once, and the newest row wins."""
        with self._state.wake:
            due = self._state.runtime.now() + within
            self._due = min(self._due, due) if self._sent < self._revision else due
            self._row, self._revision = row, self._revision + 1
            self._state.wake.notify()

    def publish_unread(self, node_ids: tuple[str, ...]) -> None:
        """Have the row say that these nodes' rows cannot be read, where it does not say so yet."""
        if node_ids != self._unread:
            with self._state.wake:
                self._unread, self._revision, self._due = node_ids, self._revision + 1, self._state.runtime.now()
                self._state.wake.notify()

    def later(self, *jobs: Job, first: bool = False) -> None:
        """Have the writer do these jobs, after the others or before them."""
        with self._state.wake:
            self._jobs = [*jobs, *self._jobs] if first else [*self._jobs, *jobs]
            self._state.wake.notify()

    @property
    def is_listed(self) -> bool:
        """True if the store has this node's row, as far as this node knows."""
        return not self._unlisted and not self.done.is_set()

    def row_seen(self, revision: int | None) -> None:
        """Send the row again if the store is behind what was sent, or has lost the row (None) (rule S7).

        A revision that this node has never sent was written by a stranger; the store would refuse this node's.
        """
        if revision is not None and revision > self._revision:
            message = f"The store has revision {revision} of this node's row, but this node is at {self._revision}."
            self._state.give_up(RendezvousStateError(message, hint=STRANGER_HINT))
            return
        with self._state.wake:
            if self.done.is_set() or (revision is not None and revision >= self._sent):
                return
            self._unlisted, self._sent, self._due = revision is None, -1, 0.0
            self._state.wake.notify()

    def run(self) -> None:
        """Write rows and do jobs until the session is over; the thread's body."""
        state, connections, backoff = self._state, self._state.connections, Backoff()
        while True:
            with state.wake:
                while not state.stopping.is_set() and (pause := self._pause()) != 0:
                    state.wake.wait(pause)
                if state.stopping.is_set():
                    break
                jobs, self._jobs = self._jobs, []
                row, revision = replace(self._row, unread=self._unread), self._revision
            if (store := connections.made["writer"] or connections.connect("writer")) is None:
                break
            try:
                self._send(store, row, revision)
                while jobs:
                    jobs[0](store)
                    jobs.pop(0)
                state.contact.worked("writer")
                backoff.worked()
            except HistoryChangedError:
                state.contact.worked("writer")
                connections.compare()
                self.later(*jobs[1:], first=True)
            except RendezvousConnectionError as exc:
                connections.failed("writer", exc)
                connections.close("writer")
                self.later(*jobs, first=True)
                state.stopping.wait(backoff.failed())
            except RendezvousStateError as exc:
                state.give_up(exc)
                break
        connections.close("writer")

    def _pause(self) -> float | None:
        """Return the seconds until there is something to do; None if there is nothing."""
        if self._jobs:
            return 0.0
        if self._sent >= self._revision:
            return None
        return RETRY_FIRST if self._is_held() else max(0.0, self._due - self._state.runtime.now())

    def _is_held(self) -> bool:
        """Return True if the row must wait for contact: it could win a place in a round, which the fence would stop."""
        return self._state.is_cut_off()

    def _send(self, store: RendezvousBackend, row: NodeRow, revision: int) -> None:
        """Bring the store's row up to date; the leader owes an answer from when it can have read the incident."""
        if self._sent >= revision or self._is_held():
            return
        node_id, codec = self._state.node_id, self._state.runtime.codec
        if unlisted := self._unlisted:
            store.enter(node_id, codec.encode_row(row))
        store.amend(node_id, revision, codec.encode_row(row))
        with self._state.wake:
            if unlisted or not self._unlisted:  # else it was lost meanwhile
                self._sent, self._unlisted = max(self._sent, revision), False
            if row.incident is not None and row.incident != self._reported and self._is_owed(row.incident):
                self._state.report_sent()
            self._reported = row.incident

    def _is_owed(self, incident: Incident) -> bool:
        """Return True if the leader owes an entry for an incident; it may have come before the store had the report."""
        ledger = self._state.ledger
        return ledger.is_live and ledger.round is not None and incident.round == ledger.round.number
