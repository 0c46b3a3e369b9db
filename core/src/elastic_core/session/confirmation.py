"""Asks a store with ``stale_reads`` to confirm that the server which takes the heartbeats is the current one (S4)."""

from __future__ import annotations

import contextlib

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.events import Event, Level
from elastic_core.session.connections import SessionConnections
from elastic_core.session.state import SessionState

CONFIRMED_SHARE = 0.25
"""Part of ``fence_after`` after which the server that takes the heartbeats has to be confirmed again."""
_UNNAMED = "with Redis, a majority of the sentinels in --rdzv_endpoint must answer and name it as the master"


class Confirmation:
    """The thread that asks for confirmation, and the leader's wait for the first one."""

    def __init__(self, state: SessionState, connections: SessionConnections) -> None:
        self._state, self._connections = state, connections
        self._unconfirmed = state.runtime.event()  # set when heartbeats go to another server, which has to be confirmed
        self._first_confirmed = state.runtime.event()
        """Set when a server was confirmed for the first time, and when the session ends."""
        self._awaited_since: float | None = None
        """Since when this node would decide, if its server were confirmed. The reader's."""

    def moved(self) -> None:
        """Have the server confirmed anew: heartbeats go to another one."""
        self._unconfirmed.set()

    def stop(self) -> None:
        """End every wait."""
        self._unconfirmed.set()
        self._first_confirmed.set()

    def run(self) -> None:
        """Ask for confirmation until the session is over; the thread's body."""
        state = self._state
        while not state.over:
            self._unconfirmed.clear()
            began, store, confirmed = state.runtime.now(), self._connections.made["heartbeat"], False
            with contextlib.suppress(RendezvousConnectionError):
                confirmed = store is not None and store.confirm()
            if confirmed and self._connections.made["heartbeat"] is store:
                state.contact.confirmed(began)
                self._first_confirmed.set()
            timing = state.ledger.settings.timing
            self._unconfirmed.wait(CONFIRMED_SHARE * timing.fence_after if confirmed else timing.beat_interval)

    def await_first(self) -> bool:
        """Wait for the first confirmation, before which a leader decides nothing (rule S4); whether it has come."""
        state = self._state
        timing, now = state.ledger.settings.timing, state.runtime.now()
        if (since := self._awaited_since) is None:
            self._awaited_since = now
        self._first_confirmed.wait(timing.beat_interval)
        if (confirmed := state.contact.ever_confirmed) or state.over:
            return confirmed
        if since is None:
            message = f"the store does not confirm that this is its current server, so that no round begins; {_UNNAMED}"
            state.calls.publish(Event("store_unconfirmed", message, Level.WARNING))
        elif state.ledger.round is None and now - since >= timing.join_timeout:
            what = f"The store has not confirmed for {timing.join_timeout:g} s that this is its current server."
            state.give_up(RendezvousStateError(what, hint=f"{_UNNAMED[0].upper()}{_UNNAMED[1:]}."))
        return False
