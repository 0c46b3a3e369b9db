"""Contact with the store: retries, and the instant up to which the node knows what the store had taken.

The fence counts from that instant (rule S4). A backend's own timeout ends most calls without an answer. The rest is for
a backend with a long one or none, and for a connection that alone is dead, such as one that a firewall has forgotten:
people are told, and another one is made.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

from elastic_core.errors import ElasticError, RendezvousConnectionError, StoreLostError, in_one_line, without_passwords
from elastic_core.events import Event, Level
from elastic_core.protocol.ledger import HistoryChangedError
from elastic_core.rendezvous.backend import RendezvousBackend
from elastic_core.rendezvous.guard import GuardedBackend
from elastic_core.session.runtime import RUNTIME, Runtime

T = TypeVar("T")
FENCE_SHARE = 0.8  # part of ``fence_after`` without store contact after which a node stops its own workers (rule S4)
CONFIRMED_SHARE = 0.25  # part of ``fence_after`` after which a server that may be replaced is to be confirmed anew
RETRY_FIRST, RETRY_MOST = 0.1, 2.0  # seconds between two attempts, at first and at most
FIRST_CONNECTION_SECONDS = 60.0
"""Seconds for which the first connection is tried at most, as torch's own store is: a store that starts or restarts is
back by then, and a user who has mistyped an endpoint should not wait for longer."""
ANSWER_WITHIN_SECONDS = 10.0
"""Seconds after which a call without an answer is told of; backends with a timeout give up sooner."""
SILENT, UNREADABLE = "does not answer", "cannot be read on"  # how a store fails


class Contact:
    """Records whether the store answers, and publishes one event when it stops and one when it answers again.

    ``now`` is this instant, by the monotonic clock: joining was an operation that succeeded.
    """

    def __init__(self, now: float, publish: Callable[[Event], None]) -> None:
        self.failing: set[str] = set()  # the threads whose last operation failed
        self._told: set[str] = set()  # the kinds of failure that people have been told of, until the store serves again
        self.known_at = now  # when this node last knew all that the store had taken, whether or not a round is live
        self._ended_at = math.inf
        self._publish = publish
        self._lock = threading.Lock()
        self._over = False

    @property
    def at(self) -> float:
        """When this node last knew all that the store had taken, by the monotonic clock (rule S4).

        It is an instant before the store was asked. While the newest round that this node has read of is not live, it
        is the last such instant at which that round was live: a node that knows its round to be over puts off the fence
        no longer.
        """
        return min(self._ended_at, self.known_at)

    def current(self, began: float) -> None:
        """Record an answer of the store that shows that it had no news for this node at ``began``, when it was asked.

        The instant at which the answer is read does not count: this node may have been frozen since the answer came.
        """
        with self._lock:
            if not self._over:
                self.known_at = max(self.known_at, began)

    def live(self, live: bool) -> None:
        """Record whether the newest round that was read of is live, before any contact counts that knows of it."""
        self._ended_at = math.inf if live else self.at

    def worked(self, who: str) -> None:
        """Record that the store has served this thread; tell people when it serves all threads again."""
        with self._lock:
            if self._over:
                return
            back = self.failing == {who}
            self.failing.discard(who)
            told = self._told
            if back:
                self._told = set()
        if back and told:
            self._publish(Event("store_back", f"the store {'answers' if SILENT in told else 'can be read'} again"))

    def failed(self, who: str, exc: ElasticError, *, surely: bool = False) -> None:
        """Record a failure of a thread. People are told once of each kind, until all threads are served again.

        The first break of a connection is not told unless the store ``surely`` fails: the connection may have been idle
        while the store restarted. A failure of the thread's next attempt is.
        """
        with self._lock:
            if self._over:
                return
            how = UNREADABLE if isinstance(exc, HistoryChangedError) else SILENT
            first = not surely and how == SILENT and who not in self.failing
            self.failing.add(who)
            news = not first and how not in self._told
            if news:
                self._told.add(how)
        if news:
            message = f"the store {how}; workers go on, and we keep trying: {in_one_line(exc)}"
            self._publish(Event("store_unreachable", message, Level.WARNING))

    def end(self) -> None:
        """Count no further operation, and tell people of none."""
        with self._lock:
            self._over = True


@dataclass(slots=True)
class Backoff:
    """The pauses of one thread after failures in a row.

    A connection that can be made is no success yet: a store that is full accepts connections and refuses operations.
    """

    pause: float = RETRY_FIRST  # seconds to wait after the next failure
    most: float = RETRY_MOST  # seconds to wait at most

    def failed(self) -> float:
        """Return the seconds to wait now; twice as long after each further failure."""
        pause, self.pause = self.pause, min(2 * self.pause, self.most)
        return pause

    def worked(self) -> None:
        """Begin again: the next failure is a first one."""
        self.pause = RETRY_FIRST


@dataclass(frozen=True, slots=True)
class StoreWait:
    """A node that joins waits for its store, and people are told."""

    endpoint: str
    seconds: float  # after which a failure is final
    publish: Callable[[Event], None]
    runtime: Runtime = RUNTIME

    def connect(self, make: Callable[[], T]) -> T:
        """Return the first connection that ``make`` returns, which is called again while the store is not up.

        Raise the last error after :attr:`seconds`, and at once one that waiting would not mend.
        """
        return self._insist(lambda _: make(), lambda exc: exc.lasting)

    def call(self, store: RendezvousBackend, attempt: Callable[[RendezvousBackend], T]) -> T:
        """Return what ``attempt`` returns, which is made again over a new connection while the store restarts.

        An attempt may begin again whatever became of it before. People are also told of a call without an answer. It
        raises the last error after :attr:`seconds`, and at once one of an embedded store, which is lost.
        """

        def attempted(first: bool) -> T:
            with (
                nullcontext(store) if first else closing(store.connect()) as connection,
                self._silence_told(connection),
            ):
                return attempt(connection)

        return self._insist(attempted, lambda exc: store.embedded or isinstance(exc, StoreLostError))

    def _insist(self, attempt: Callable[[bool], T], is_final: Callable[[RendezvousConnectionError], bool]) -> T:
        """Call ``attempt(first)`` until it succeeds or the deadline passes; return its result."""
        backoff, first, deadline = Backoff(), True, self.runtime.now() + self.seconds
        while True:
            try:
                return attempt(first)
            except RendezvousConnectionError as exc:
                left = deadline - self.runtime.now()
                if is_final(exc) or left <= 0:
                    raise
                if first:
                    where = f" at {without_passwords(self.endpoint)}" if self.endpoint else ""
                    patience = f"waiting for it for up to {self.seconds:.0f} s"
                    self._tell(f"the store{where} does not answer; {patience}: {in_one_line(exc)}")
                first = False
                self.runtime.sleep(min(backoff.failed(), left))

    @contextmanager
    def _silence_told(self, store: RendezvousBackend) -> Iterator[None]:
        """Have a thread tell people, once, of a call over ``store`` without an answer."""
        over = self.runtime.event()

        def watch() -> None:
            while not over.wait(ANSWER_WITHIN_SECONDS / 4):
                call = call_of(JOINING, store)
                if call is not None and (silence := self.runtime.now() - call.due) >= ANSWER_WITHIN_SECONDS:
                    error = unanswered(call, silence, self.endpoint)
                    self._tell(f"the store does not answer: {in_one_line(error)}")
                    return

        self.runtime.thread(target=watch, name="elastic-silence", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _tell(self, message: str) -> None:
        self.publish(Event("store_unreachable", message, Level.WARNING))


# Calls without an answer ----------------------------------------------------------------------------------------------

RENEW_CALL_FACTOR = 2.0
"""Times :data:`ANSWER_WITHIN_SECONDS` after which its connection is closed, so that the thread makes another one."""
JOINING = "joining"  # the caller, before there is a session
WHAT = {"heartbeat": "a heartbeat to", "reader": "a read from", "writer": "a write to", JOINING: "a question to"}
"""The calls to the store, by thread of a session or by a node that joins, for messages."""


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
    """Return True if a call has been out for so long that its connection is to be made anew.

    Its answer is overdue for ``silence`` seconds; people are told after ``within`` seconds. A reader or a writer is
    given up only where a heartbeat that began later (at ``heartbeat_at``) has been answered: else the store itself is
    silent, and another connection would be no better.
    """
    if call.store is None or call.store.closed or call.store.embedded or silence < RENEW_CALL_FACTOR * within:
        return False
    return call.who == "heartbeat" or heartbeat_at > call.due


def unanswered(call: StoreCall, silence: float, endpoint: str, fence: float | None = None) -> RendezvousConnectionError:
    """Return the error for a call whose answer is overdue for ``silence`` s; workers are stopped after ``fence``."""
    where = f" at {without_passwords(endpoint)}" if endpoint else ""
    what = "a connection to" if call.store is None else WHAT[call.who]
    hint = "See whether its server is stopped or overloaded, and whether packets get there."
    if fence is not None and call.who != "writer":
        hint += f" Workers are stopped after {fence:.0f} s without it."
    return RendezvousConnectionError(f"{what} the store{where} has had no answer for {silence:.0f} s.", hint=hint)
