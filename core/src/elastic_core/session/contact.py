"""Whether the store serves the threads of a session, and since when it is known to have had no news for this node.

The fence counts from the second (rule S4), and people are told when the first changes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from elastic_core.errors import ElasticError
from elastic_core.events import Event, Level
from elastic_core.protocol.ledger import HistoryChangedError

__all__ = ["FENCE_SHARE", "Contact"]

FENCE_SHARE = 0.8
"""Part of ``fence_after`` without store contact after which a node stops its own workers (rule S4)."""
SILENT, UNREADABLE = "does not answer", "cannot be read on"
"""How a store fails."""


class Contact:
    """What the threads' operations came to.

    Args:
        now: This instant, by the monotonic clock: joining was an operation that succeeded.
        publish: Told when the store stops to serve, and when it serves again.
        confirms: Whether the store's server has to be confirmed (:meth:`RendezvousBackend.confirm`) for what it answers
            to count.
    """

    def __init__(self, now: float, publish: Callable[[Event], None], *, confirms: bool = False) -> None:
        self.failing: set[str] = set()
        """The threads whose last operation failed."""
        self._failed_once: set[str] = set()
        """Those whose connection broke once, as an idle one may have done long before; another one is being made."""
        self._told: set[str] = set()
        """What people have been told, until the store serves again."""
        self._confirms = confirms
        self.ever_confirmed = not confirms
        """Whether the server was ever confirmed: a node may come to one that was replaced long before."""
        self._before = self._current_at = now
        self._confirmed_at = now if confirms else math.inf
        self._ended_at = math.inf
        self._publish = publish
        self._lock = threading.Lock()
        self._over = False

    @property
    def at(self) -> float:
        """When this node last knew all that the store had taken, by the monotonic clock (rule S4).

        It is an instant before the store was asked. While the newest round that was read of is not live, it is the last
        such instant at which it was: who has read that a round is over puts off the fence no longer.
        """
        return min(self._ended_at, self.known_at)

    @property
    def known_at(self) -> float:
        """The same, whether or not a round is live."""
        return max(self._before, min(self._current_at, self._confirmed_at))

    def current(self, began: float) -> None:
        """What the store answered to a question of ``began`` shows that it had no news for this node then.

        When the answer is read says nothing: this node may have been frozen since it came.
        """
        with self._lock:
            if not self._over:
                self._current_at = max(self._current_at, began)

    def confirmed(self, began: float) -> None:
        """The server that takes the heartbeats was still the right one when that was asked, at ``began``."""
        with self._lock:
            if not self._over:
                self._confirmed_at = max(self._confirmed_at, began)
                self.ever_confirmed = True

    def moved(self) -> None:
        """Heartbeats go to another server from now on, which has to be confirmed by itself."""
        with self._lock:
            if self._confirms:
                self._before = max(self._before, min(self._current_at, self._confirmed_at))
                self._current_at = self._confirmed_at = -math.inf

    def live(self, live: bool) -> None:
        """Whether the newest round that was read of is live; called before anything counts that knows of it."""
        if live:
            self._ended_at = math.inf
        else:
            self._ended_at = self.at

    def worked(self, who: str) -> None:
        """The store has served this thread."""
        with self._lock:
            if self._over:
                return
            back = self.failing == {who}
            self.failing.discard(who)
            self._failed_once.discard(who)
            silent, told = SILENT in self._told, bool(self._told)
            if back:
                self._told = set()
        if back and told:
            self._publish(Event("store_back", f"the store {'answers' if silent else 'can be read'} again"))

    def failed(self, who: str, exc: ElasticError, *, surely: bool = False) -> None:
        """Say so once of each kind, until all threads are served again: a store that is full serves who only reads.

        A connection that breaks is no news, since it may have been idle while the store restarted. What is news is that
        the thread's next attempt fails too.

        Args:
            who: The thread.
            exc: What it met.
            surely: Whether it is the store that fails, and not only a connection.
        """
        with self._lock:
            if self._over:
                return
            how = UNREADABLE if isinstance(exc, HistoryChangedError) else SILENT
            first = not surely and how == SILENT and who not in self._failed_once
            self._failed_once.add(who)
            self.failing.add(who)
            news = not first and how not in self._told
            if news:
                self._told.add(how)
        if news:
            what = " ".join(filter(None, [exc.message, exc.hint]))
            message = f"the store {how}; workers go on, and we keep trying: {what}"
            self._publish(Event("store_unreachable", message, Level.WARNING))

    def end(self) -> None:
        """Nothing counts from now on, and nothing is said."""
        with self._lock:
            self._over = True
