"""The session's writer: it keeps the node's row up to date, and does the rare jobs.

It has a thread and a connection of its own, and reconnects for as long as it takes. What it could not finish over one
connection it begins again over the next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from elastic_core.errors import ElasticError, RendezvousConnectionError, RendezvousStateError
from elastic_core.incidents import Incident
from elastic_core.protocol.codec import encode_row
from elastic_core.protocol.ledger import HistoryChangedError
from elastic_core.protocol.roster import NodeRow
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.session.join import Clock
from elastic_core.session.leave import let_go
from elastic_core.session.retry import RETRY_FIRST, Backoff

Job = Callable[[RendezvousBackend], None]
"""Something to do over the writer's connection, from the beginning again if that breaks meanwhile."""


@dataclass(frozen=True, slots=True)
class WriterCalls:
    """What the writer asks and tells its session."""

    connected: Callable[[], RendezvousBackend | None]
    """A new connection, however long that takes; None when there is none to be had any more."""
    worked: Callable[[], None]
    """Store operations succeeded."""
    failed: Callable[[RendezvousConnectionError], None]
    """A connection broke; there will be another."""
    doubtful: Callable[[], None]
    """The store does not have what this node has read (rule S3)."""
    given_up: Callable[[ElasticError], None]
    """The store holds what cannot be; the thread ends."""
    is_owed: Callable[[Incident], bool]
    """Whether the leader owes an entry for an incident; its answer may have come before the store had the row."""
    reported: Callable[[], None]
    """From now on it does."""
    cut_off: Callable[[], bool]
    """Whether this node has been without contact for as long as its fence takes: a row could win it a place in a round,
    whose workers its fence would stop at once. It is told after the next heartbeat that is contact."""


class Writer:
    """What is to be written, and the thread that does it.

    Args:
        row: The one with which the node has entered, as revision 0.
        clock: The session's.
        wake: Guards what is here, and whatever of the session's must not change while a report is sent.
        stopping: Set, and ``wake`` notified, when the thread is to end.
        calls: The session's.
    """

    def __init__(
        self, row: NodeRow, clock: Clock, wake: threading.Condition, stopping: threading.Event, calls: WriterCalls
    ) -> None:
        self._node_id, self._clock, self._wake, self._stopping = row.info.node_id, clock, wake, stopping
        self._calls = calls
        self.connection: RendezvousBackend | None = None
        """What the thread writes over, while it has one."""
        self.done = threading.Event()
        """Nothing is left to tell the store: this node has left, or there is no store any more."""
        self._row = row
        self._unread: tuple[str, ...] = ()  # the nodes whose rows this one cannot read, which goes with every row
        self._revision = 0
        self._due = 0.0  # when the newest revision is to be sent
        self._sent = 0  # the least that the store has; -1 once it is behind
        self._unlisted = False  # whether the store has lost our row, which has to be entered anew
        self._reported: Incident | None = None  # what the store was last told of
        self._jobs: list[Job] = []

    def publish(self, row: NodeRow, within: float = 0.0) -> None:
        """Make the roster say this ``within`` seconds; returns at once, and the newest row wins."""
        with self._wake:
            due = self._clock.now() + within
            self._due = min(self._due, due) if self._sent < self._revision else due
            self._row, self._revision = row, self._revision + 1
            self._wake.notify()

    def publish_unread(self, node_ids: tuple[str, ...]) -> None:
        """Have the row say that these nodes' rows cannot be read, where it does not say so yet."""
        if node_ids != self._unread:
            with self._wake:
                self._unread, self._revision, self._due = node_ids, self._revision + 1, self._clock.now()
                self._wake.notify()

    def later(self, job: Job) -> None:
        """Have the thread do it."""
        with self._wake:
            self._jobs.append(job)
            self._wake.notify()

    def row_seen(self, revision: int | None) -> None:
        """Rule S7: send again if the store is behind what was sent, or lost the row (None).

        A revision that this node has never sent is somebody else's, and none of its own would be taken any more.
        """
        if revision is not None and revision > self._revision:
            self._calls.given_up(
                RendezvousStateError(
                    f"The store has revision {revision} of this node's row, but this node is at {self._revision}.",
                    hint="Something else writes to the store: use another --rdzv_id. See docs/security.md.",
                )
            )
            return
        with self._wake:
            if self.done.is_set() or (revision is not None and revision >= self._sent):
                return
            self._unlisted, self._sent, self._due = revision is None, -1, 0.0
            self._wake.notify()

    def run(self) -> None:
        """The thread's body."""
        backoff = Backoff()
        while True:
            with self._wake:
                while not (self._stopping.is_set() or self._jobs) and (pause := self._pause()) != 0:
                    self._wake.wait(pause)
                if self._stopping.is_set():
                    break
                row, revision = replace(self._row, unread=self._unread), self._revision
                jobs, self._jobs = self._jobs, []
            if (store := self.connection or self._calls.connected()) is None:
                break
            try:
                with self._wake:
                    self.connection = store
                if self._sent < revision and not self._is_held():
                    self._tell(store, row, revision)
                while jobs:
                    jobs[0](store)
                    jobs.pop(0)
                self._calls.worked()
                backoff.worked()
            except HistoryChangedError:
                self._calls.worked()
                self._calls.doubtful()
                self._put_back(jobs[1:])
            except RendezvousConnectionError as exc:
                self._calls.failed(exc)
                self._hang_up()
                self._put_back(jobs)
                self._stopping.wait(backoff.failed())
            except RendezvousStateError as exc:
                self._calls.given_up(exc)
                break
        self._hang_up()

    def _pause(self) -> float | None:
        """Seconds until the row is to be written, or is looked at again; None where the store has the newest."""
        if self._sent >= self._revision:
            return None
        return RETRY_FIRST if self._is_held() else max(0.0, self._due - self._clock.now())

    def _is_held(self) -> bool:
        """Whether the row must wait for contact."""
        return self._calls.cut_off()

    def _tell(self, store: RendezvousBackend, row: NodeRow, revision: int) -> None:
        """Bring our row up to date; the leader owes an answer from when it can have read what happened here."""
        if unlisted := self._unlisted:
            store.enter(self._node_id, encode_row(row))
        store.amend(self._node_id, revision, encode_row(row))
        with self._wake:
            if unlisted or not self._unlisted:  # else it was lost meanwhile
                self._sent, self._unlisted = max(self._sent, revision), False
            if row.incident is not None and row.incident != self._reported and self._calls.is_owed(row.incident):
                self._calls.reported()
            self._reported = row.incident

    def _put_back(self, jobs: list[Job]) -> None:
        with self._wake:
            self._jobs = [*jobs, *self._jobs]

    def _hang_up(self) -> None:
        with self._wake:
            store, self.connection = self.connection, None
        let_go(store)
