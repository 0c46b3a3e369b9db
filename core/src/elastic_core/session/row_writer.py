"""The session's writer: keeps the node's roster row up to date, and does the rare jobs."""

from __future__ import annotations

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.protocol.ledger import HistoryChangedError
from elastic_core.session.connections import SessionConnections
from elastic_core.session.contact import Backoff
from elastic_core.session.leave import let_go
from elastic_core.session.state import SessionState


class RowWriter:
    """The writer's thread, which empties the session's outbox."""

    def __init__(self, state: SessionState, connections: SessionConnections) -> None:
        self._state, self._connections = state, connections

    def run(self) -> None:
        """Write rows and do jobs until the session is over; the thread's body."""
        state, outbox, backoff = self._state, self._state.outbox, Backoff()
        while True:
            with state.wake:
                while not state.stopping.is_set() and (pause := outbox.pause()) != 0:
                    state.wake.wait(pause)
                if state.stopping.is_set():
                    break
                row, revision, jobs = outbox.take()
            if (store := self._connections.made["writer"] or self._connections.connect("writer")) is None:
                break
            try:
                with state.wake:
                    self._connections.made["writer"] = store
                outbox.send(store, row, revision)
                while jobs:
                    jobs[0](store)
                    jobs.pop(0)
                state.contact.worked("writer")
                backoff.worked()
            except HistoryChangedError:
                state.contact.worked("writer")
                self._connections.compare()
                outbox.later(*jobs[1:], first=True)
            except RendezvousConnectionError as exc:
                self._connections.failed("writer", exc)
                self._hang_up()
                outbox.later(*jobs, first=True)
                state.stopping.wait(backoff.failed())
            except RendezvousStateError as exc:
                state.give_up(exc)
                break
        self._hang_up()

    def _hang_up(self) -> None:
        with self._state.wake:
            store, self._connections.made["writer"] = self._connections.made["writer"], None
        let_go(store)
