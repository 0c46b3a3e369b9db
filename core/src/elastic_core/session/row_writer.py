"""The session's writer: keeps the node's roster row up to date, and does the rare jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.incidents import Incident
from elastic_core.protocol.ledger import HistoryChangedError
from elastic_core.protocol.roster import NodeRow
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.session.connections import SessionConnections
from elastic_core.session.contact import RETRY_FIRST, Backoff
from elastic_core.session.leave import let_go
from elastic_core.session.state import SessionState

Job = Callable[[RendezvousBackend], object]
"""Is called with the writer's connection, and from the beginning with the next one if that connection breaks."""


class RowWriter:
    """The rows and jobs to be written, and the thread that writes them.

    Args:
        state: The session's. Its ``wake`` guards what is here; ``stopping`` ends the thread.
        row: The row with which the node has entered, as revision 0.
        compare: Called when the store does not have what this node has read (rule S3).
        reported: Called when the store has this node's report of an incident, and the leader owes an entry.
    """

    def __init__(
        self,
        state: SessionState,
        connections: SessionConnections,
        row: NodeRow,
        *,
        compare: Callable[[], None],
        reported: Callable[[], None],
    ) -> None:
        self._state, self._connections = state, connections
        self._compare, self._incident_reported = compare, reported
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

    def later(self, job: Job) -> None:
        """Have the thread do a job."""
        with self._state.wake:
            self._jobs.append(job)
            self._state.wake.notify()

    @property
    def is_listed(self) -> bool:
        """Whether the store has this node's row, as far as this node knows."""
        return not self._unlisted and not self.done.is_set()

    def row_seen(self, revision: int | None) -> None:
        """Send the row again if the store is behind what was sent, or has lost the row (None) (rule S7).

        A revision that this node has never sent was written by a stranger; the store would refuse this node's.
        """
        if revision is not None and revision > self._revision:
            self._state.give_up(
                RendezvousStateError(
                    f"The store has revision {revision} of this node's row, but this node is at {self._revision}.",
                    hint="Something else writes to the store: use another --rdzv_id. See docs/security.md.",
                )
            )
            return
        with self._state.wake:
            if self.done.is_set() or (revision is not None and revision >= self._sent):
                return
            self._unlisted, self._sent, self._due = revision is None, -1, 0.0
            self._state.wake.notify()

    def run(self) -> None:
        """Write rows and do jobs until the session is over; the thread's body."""
        backoff = Backoff()
        while True:
            with self._state.wake:
                while not (self._state.stopping.is_set() or self._jobs) and (pause := self._pause()) != 0:
                    self._state.wake.wait(pause)
                if self._state.stopping.is_set():
                    break
                row, revision = replace(self._row, unread=self._unread), self._revision
                jobs, self._jobs = self._jobs, []
            if (store := self._connections.made["writer"] or self._connections.connect("writer")) is None:
                break
            try:
                with self._state.wake:
                    self._connections.made["writer"] = store
                if self._sent < revision and not self._is_held():
                    self._tell(store, row, revision)
                while jobs:
                    jobs[0](store)
                    jobs.pop(0)
                self._state.contact.worked("writer")
                backoff.worked()
            except HistoryChangedError:
                self._state.contact.worked("writer")
                self._compare()
                self._put_back(jobs[1:])
            except RendezvousConnectionError as exc:
                self._connections.failed("writer", exc)
                self._hang_up()
                self._put_back(jobs)
                self._state.stopping.wait(backoff.failed())
            except RendezvousStateError as exc:
                self._state.give_up(exc)
                break
        self._hang_up()

    def _pause(self) -> float | None:
        """Return the seconds until the row is to be written or looked at again; None if the store has the newest."""
        if self._sent >= self._revision:
            return None
        return RETRY_FIRST if self._is_held() else max(0.0, self._due - self._state.runtime.now())

    def _is_held(self) -> bool:
        """Whether the row must wait for contact: it could win a place in a round, whose workers the fence would stop.

        It is written after the next heartbeat that is contact.
        """
        return self._state.is_cut_off()

    def _tell(self, store: RendezvousBackend, row: NodeRow, revision: int) -> None:
        """Bring the row up to date; the leader owes an answer from when it can have read the incident."""
        if unlisted := self._unlisted:
            store.enter(self._state.node_id, self._state.runtime.codec.encode_row(row))
        store.amend(self._state.node_id, revision, self._state.runtime.codec.encode_row(row))
        with self._state.wake:
            if unlisted or not self._unlisted:  # else it was lost meanwhile
                self._sent, self._unlisted = max(self._sent, revision), False
            if row.incident is not None and row.incident != self._reported and self._is_owed(row.incident):
                self._incident_reported()
            self._reported = row.incident

    def _is_owed(self, incident: Incident) -> bool:
        """Whether the leader owes an entry for an incident; it may have come before the store had the report."""
        ledger = self._state.ledger
        return ledger.is_live and ledger.round is not None and incident.round == ledger.round.number

    def _put_back(self, jobs: list[Job]) -> None:
        with self._state.wake:
            self._jobs = [*jobs, *self._jobs]

    def _hang_up(self) -> None:
        with self._state.wake:
            store, self._connections.made["writer"] = self._connections.made["writer"], None
        let_go(store)
