"""Whether the store serves the threads of a session, and since when.

The fence counts from that (rule S4), and people are told when it changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from elastic_core.errors import ElasticError
from elastic_core.events import Event, Level
from elastic_core.rendezvous.ledger import HistoryChangedError

__all__ = ["Contact"]


class Contact:
    """What the threads' operations came to.

    Args:
        now: This instant, by the monotonic clock: joining was an operation that succeeded.
        publish: Told when the store stops to serve, and when it serves again.
    """

    def __init__(self, now: float, publish: Callable[[Event], None]) -> None:
        self.at = now
        """When the newest of the store operations that succeeded was begun, by the monotonic clock (rule S4)."""
        self.failing: set[str] = set()
        """The threads whose last operation failed."""
        self._publish = publish
        self._lock = threading.Lock()
        self._over = False

    def worked(self, who: str, began: float) -> None:
        """The store has answered what was asked at ``began``, and serves this thread ('' where that is to be seen yet).

        When the answer is read says nothing: this node may have been frozen since it came.
        """
        with self._lock:
            if self._over:
                return
            self.at = max(self.at, began)
            back = self.failing == {who}
            self.failing.discard(who)
        if back:
            self._publish(Event("store_back", "the store answers again"))

    def failed(self, who: str, exc: ElasticError) -> None:
        """Say so once, until all threads are served again: a store that is full serves those that only read."""
        with self._lock:
            if self._over:
                return
            first = not self.failing
            self.failing.add(who)
        if first:
            how = "cannot be read on" if isinstance(exc, HistoryChangedError) else "does not answer"
            what = " ".join(filter(None, [exc.message, exc.hint]))
            message = f"the store {how}; workers go on, and we keep trying: {what}"
            self._publish(Event("store_unreachable", message, Level.WARNING))

    def end(self) -> None:
        """Nothing counts from now on, and nothing is said."""
        with self._lock:
            self._over = True
