"""What the session's writer is to write: the newest row of this node, and rare jobs. Any thread adds to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.errors import RendezvousStateError
from elastic_core.protocol.roster import NodeRow
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.session.contact import RETRY_FIRST

if TYPE_CHECKING:
    from elastic_core.incidents import Incident
    from elastic_core.session.state import SessionState

Job = Callable[[RendezvousBackend], object]
"""Is called with the writer's connection, and from the beginning with the next one if that connection breaks."""


class Outbox:
    """The rows and jobs to be written.

    Args:
        state: The session's. Its ``wake`` guards what is here, and wakes the writer.
        row: The row with which the node has entered, as revision 0.
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

    def pause(self) -> float | None:
        """Return the seconds until the writer has something to do; None if it has nothing to do."""
        if self._jobs:
            return 0.0
        if self._sent >= self._revision:
            return None
        return RETRY_FIRST if self.is_held() else max(0.0, self._due - self._state.runtime.now())

    def is_held(self) -> bool:
        """Whether the row must wait for contact: it could win a place in a round, whose workers the fence would stop.

        It is written after the next heartbeat that is contact.
        """
        return self._state.is_cut_off()

    def take(self) -> tuple[NodeRow, int, list[Job]]:
        """Return the newest row, its revision, and the jobs, which the writer does or puts back."""
        jobs, self._jobs = self._jobs, []
        return replace(self._row, unread=self._unread), self._revision, jobs

    def send(self, store: RendezvousBackend, row: NodeRow, revision: int) -> None:
        """Bring the store's row up to date; the leader owes an answer from when it can have read the incident."""
        if self._sent >= revision or self.is_held():
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
        """Whether the leader owes an entry for an incident; it may have come before the store had the report."""
        ledger = self._state.ledger
        return ledger.is_live and ledger.round is not None and incident.round == ledger.round.number
