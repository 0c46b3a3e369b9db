"""Calls to the store that get no answer: when people are told of one, and when its connection is made anew.

A backend's own timeout ends most such calls. This is for a backend with a long one or none, and for a connection that
alone is dead: a firewall that has forgotten it drops its packets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from elastic_core.errors import RendezvousConnectionError, without_passwords
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.rendezvous.guard import GuardedBackend
from elastic_core.session.runtime import RUNTIME, Runtime

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
    """Whether a call has been out for so long that its connection is to be made anew.

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
    """Return what people are told of a call whose answer is overdue for ``silence`` seconds.

    ``fence`` is after how many seconds without contact workers are stopped; None where there are none.
    """
    where = f" at {without_passwords(endpoint)}" if endpoint else ""
    what = "a connection to" if call.store is None else WHAT[call.who]
    hint = "See whether its server is stopped or overloaded, and whether packets get there."
    if fence is not None and call.who != "writer":
        hint += f" Workers are stopped after {fence:.0f} s without it."
    return RendezvousConnectionError(f"{what} the store{where} has had no answer for {silence:.0f} s.", hint=hint)
