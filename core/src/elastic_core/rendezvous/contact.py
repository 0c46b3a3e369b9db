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

SILENT, UNREADABLE = "does not answer", "cannot be read on"
"""How a store fails."""


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
        self._told: set[str] = set()
        """What people have been told, until the store serves again."""
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
            silent = SILENT in self._told
            if back:
                self._told = set()
        if back:
            self._publish(Event("store_back", f"the store {'answers' if silent else 'can be read'} again"))

    def failed(self, who: str, exc: ElasticError) -> None:
        """Say so once of each kind, until all threads are served again: a store that is full serves who only reads."""
        with self._lock:
            if self._over:
                return
            how = UNREADABLE if isinstance(exc, HistoryChangedError) else SILENT
            news = how not in self._told
            self._told.add(how)
            self.failing.add(who)
        if news:
            what = " ".join(filter(None, [exc.message, exc.hint]))
            message = f"the store {how}; workers go on, and we keep trying: {what}"
            self._publish(Event("store_unreachable", message, Level.WARNING))

    def end(self) -> None:
        """Nothing counts from now on, and nothing is said."""
        with self._lock:
            self._over = True
