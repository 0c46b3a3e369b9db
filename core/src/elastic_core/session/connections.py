"""The connections of a session's threads, and calls over them that get no answer.

Threads reconnect for as long as it takes, since losing sight of the store does not stop healthy workers (rule S4). An
embedded store that is lost is lost for good, and the session ends.

A backend's own timeout ends most calls without an answer. The rest is for a backend with a long one or none, and for a
connection that alone is dead, such as one that a firewall has forgotten: people are told, and another one is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from elastic_core.errors import (
    ElasticError,
    RendezvousConnectionError,
    RendezvousStateError,
    StoreLostError,
    without_passwords,
)
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.rendezvous.guard import GuardedBackend
from elastic_core.session.contact import FENCE_SHARE, RETRY_MOST, Backoff
from elastic_core.session.runtime import RUNTIME, Runtime
from elastic_core.session.state import SessionState

THREADS = ("reader", "writer", "heartbeat")  # the threads with a connection of their own
ANSWER_WITHIN_SECONDS = 10.0
"""Seconds after which a call without an answer is told of; backends with a timeout give up sooner."""
RENEW_CALL_FACTOR = 2.0
"""Times :data:`ANSWER_WITHIN_SECONDS` after which its connection is closed, so that the thread makes another one."""
JOINING = "joining"  # the caller, before there is a session
WHAT = {"heartbeat": "a heartbeat to", "reader": "a read from", "writer": "a write to", JOINING: "a question to"}
"""What the threads of a session, and a node that joins, ask of the store."""


@dataclass(frozen=True, slots=True)
class StoreCall:
    """A call that is under way. Instants are the monotonic clock's."""

    who: str  # the session's thread that made it, or :data:`JOINING`
    due: float  # when its answer was to be expected: at once, or for a wait when its time is over
    store: GuardedBackend | None = None  # its connection; None for the call that makes one


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
        self.doubt = False
        """Whether the store may have lost entries: the reader compares on its next connection, or does so now (S3)."""
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

    def compare(self) -> None:
        """Have the reader compare the store's history with this node's (rule S3), on a new connection: it may be
        asleep on the one that it has.
        """
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


def call_of(who: str, store: object, unread_since: float | None = None) -> StoreCall | None:
    """Return the call that is under way over a connection; None where there is none, or where that cannot be known.

    ``who`` made it. ``unread_since`` is since when the store is known to have entries that this thread has not read,
    which a wait should have brought.
    """
    if not isinstance(store, GuardedBackend) or (asked := store.asked) is None:
        return None
    due = asked.at + asked.may_take
    if asked.may_take and unread_since is not None:
        due = min(due, max(asked.at, unread_since))
    return StoreCall(who, due, store)


def may_be_renewed(call: StoreCall, silence: float, heartbeat_at: float, *, within: float) -> bool:
    """Return True if a call has been out for so long that its connection is to be made anew.

    Its answer is overdue for ``silence`` seconds; people are told after ``within`` seconds. A reader or a writer is
    given up only where a heartbeat that began later (at ``heartbeat_at``) has been answered: else the store itself is
    silent, and another connection would be no better.
    """
    if call.store is None or call.store.embedded or silence < RENEW_CALL_FACTOR * within:
        return False
    return call.who == "heartbeat" or heartbeat_at > call.due


@contextmanager
def silence_told(
    store: RendezvousBackend,
    tell: Callable[[RendezvousConnectionError], None],
    endpoint: str,
    *,
    within: float = ANSWER_WITHIN_SECONDS,
    runtime: Runtime = RUNTIME,
) -> Iterator[None]:
    """Have a thread ``tell``, once, of a call over ``store`` without an answer for ``within`` seconds."""
    over = runtime.event()

    def watch() -> None:
        while not over.wait(within / 4):
            call = call_of(JOINING, store)
            if call is not None and (silence := runtime.now() - call.due) >= within:
                tell(unanswered(call, silence, endpoint))
                return

    runtime.thread(target=watch, name="elastic-silence", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def unanswered(call: StoreCall, silence: float, endpoint: str, fence: float | None = None) -> RendezvousConnectionError:
    """Return the error for a call whose answer is overdue for ``silence`` seconds.

    ``fence`` is after how many seconds without contact workers are stopped; None where there are none.
    """
    where = f" at {without_passwords(endpoint)}" if endpoint else ""
    what = "a connection to" if call.store is None else WHAT[call.who]
    hint = "See whether its server is stopped or overloaded, and whether packets get there."
    if fence is not None and call.who != "writer":
        hint += f" Workers are stopped after {fence:.0f} s without it."
    return RendezvousConnectionError(f"{what} the store{where} has had no answer for {silence:.0f} s.", hint=hint)
