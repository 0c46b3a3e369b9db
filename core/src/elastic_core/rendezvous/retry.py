"""How long to wait before the next attempt at a store that fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from elastic_core.errors import RendezvousConnectionError, StoreLostError
from elastic_core.rendezvous.backend import RendezvousBackend

T = TypeVar("T")
RETRY_FIRST, RETRY_MOST = 0.1, 2.0
"""Seconds between two attempts, at first and at most."""


@dataclass(slots=True)
class Backoff:
    """Failures in a row, of one thread.

    A connection that can be made is no success yet: a store that is full, or a replica that takes no writes, answers
    the one and refuses the other, as often as it is asked.
    """

    pause: float = RETRY_FIRST
    """Seconds to wait after the next failure."""
    most: float = RETRY_MOST
    """Seconds to wait at most."""

    def failed(self) -> float:
        """Seconds to wait now; twice as long after each further failure."""
        pause, self.pause = self.pause, min(2 * self.pause, self.most)
        return pause

    def worked(self) -> None:
        """The next failure is a first one again."""
        self.pause = RETRY_FIRST


def persist(
    store: RendezvousBackend,
    attempt: Callable[[RendezvousBackend], T],
    failed: Callable[[RendezvousConnectionError], None],
    *,
    timeout: float,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """What ``attempt`` returns, which is made again over a new connection while the store restarts.

    Args:
        store: What is tried first; its new connections come after that.
        attempt: May be made again from the beginning, whatever became of it before.
        failed: Told of the first failure.
        timeout: Seconds after which the failure is final. That of an embedded store always is.
        now: The clock.
        sleep: Waits.

    Raises:
        RendezvousConnectionError: The store could not be reached for so long.
    """
    backoff, deadline, first = Backoff(), now() + timeout, True
    while True:
        try:
            if first:
                return attempt(store)
            connection = store.connect()
            try:
                return attempt(connection)
            finally:
                connection.close()
        except RendezvousConnectionError as exc:
            if store.embedded or isinstance(exc, StoreLostError) or now() >= deadline:
                raise
            if first:
                failed(exc)
            first = False
            sleep(backoff.failed())
