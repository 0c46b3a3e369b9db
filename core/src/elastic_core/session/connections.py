"""Makes the connections of a session's threads, and closes a connection over which no answer comes.

Threads reconnect for as long as it takes, since losing sight of the store does not stop healthy workers (rule S4). An
embedded store that is lost is lost for good, and the session ends.
"""

from __future__ import annotations

from elastic_core.errors import ElasticError, RendezvousConnectionError, RendezvousStateError, StoreLostError
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.session.contact import FENCE_SHARE, RETRY_MOST, Backoff
from elastic_core.session.state import SessionState
from elastic_core.session.store_calls import StoreCall, call_of, may_be_renewed, unanswered

THREADS = ("reader", "writer", "heartbeat")  # the threads with a connection of their own


class SessionConnections:
    """The connections of :data:`THREADS`."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self.store_gone = False
        """Whether an embedded store is known to be gone, so that no node can go on elsewhere (rule S4)."""
        self._checked_at = self.heartbeat_at = state.runtime.now()
        """When answers were last checked, and when the last heartbeat that was answered began."""
        self.made: dict[str, RendezvousBackend | None] = dict.fromkeys(THREADS)  # the connection of each thread
        self._connecting: dict[str, float | None] = dict.fromkeys(THREADS)
        """Since when each thread makes a connection; None while it does not."""
        self._hung_up: dict[str, RendezvousBackend] = {}
        """The connection of each thread that was closed last because no answer came over it."""

    def connect(self, who: str) -> RendezvousBackend | None:
        """Return a new connection, however long it takes; None when the session ends instead.

        A leader that finds the store back first gives others ``lost_after`` to be back (rule L1): they try more often.
        """
        state = self._state
        backoff = Backoff(most=min(RETRY_MOST, state.ledger.settings.timing.lost_after / 3))
        while not state.over:
            try:
                self._connecting[who] = state.runtime.now()
                try:
                    return state.store.connect()
                finally:
                    self._connecting[who] = None
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
        unread = {"reader": state.unread_since}
        calls += filter(None, (call_of(who, store, unread.get(who)) for who, store in self.made.items()))
        for call in calls:
            if (silence := now - call.due) < within:
                continue
            error = unanswered(call, silence, endpoint, FENCE_SHARE * timing.fence_after)
            state.contact.failed(call.who, error, surely=True)
            if may_be_renewed(call, silence, self.heartbeat_at, within=within):
                self._hang_up(call)

    def _hang_up(self, call: StoreCall) -> None:
        """Close the connection, once, on a separate thread: closing may take long without an answer."""
        if call.store is not None and self._hung_up.get(call.who) is not call.store:
            self._hung_up[call.who] = call.store
            state, close = self._state, call.store.close
            state.runtime.thread(target=state.guard, args=(close,), name="elastic-hang-up", daemon=True).start()
