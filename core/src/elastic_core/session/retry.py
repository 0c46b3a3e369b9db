"""How long to wait before the next attempt at a store that fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from elastic_core.errors import RendezvousConnectionError, StoreLostError, in_one_line, without_passwords
from elastic_core.events import Event, Level
from elastic_core.rendezvous.backend import RendezvousBackend

T = TypeVar("T")
RETRY_FIRST, RETRY_MOST = 0.1, 2.0
"""Seconds between two attempts, at first and at most."""
FIRST_CONNECTION_SECONDS = 60.0
"""Seconds for which the first connection is tried at most, as torch's own store is: a store that starts or restarts is
back by then, and whoever has mistyped an endpoint should not wait for longer."""


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


def store_awaited(endpoint: str, seconds: float, exc: RendezvousConnectionError) -> Event:
    """What people are told when a node that joins meets a store that does not answer.

    Args:
        endpoint: The store's; '' for none.
        seconds: How long the node tries again.
        exc: What the first attempt failed with.
    """
    where = f" at {without_passwords(endpoint)}" if endpoint else ""
    message = f"the store{where} does not answer; waiting for it for up to {seconds:.0f} s: {in_one_line(exc)}"
    return Event("store_unreachable", message, Level.WARNING)


def silent_store(exc: RendezvousConnectionError) -> Event:
    """What people are told when a node that joins gets no answer to what it has asked."""
    return Event("store_unreachable", f"the store does not answer: {in_one_line(exc)}", Level.WARNING)


def connect_at_first(
    make: Callable[[], T],
    failed: Callable[[RendezvousConnectionError], None],
    *,
    timeout: float,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """The first connection that ``make`` returns, which is called again while the store is not up.

    Args:
        make: Makes a connection; the backend's hook.
        failed: Told of the first failure that is not final.
        timeout: Seconds after which a failure is final. One that is ``lasting`` always is.
        now: The clock.
        sleep: Waits.

    Raises:
        RendezvousConnectionError: The store could not be reached for so long, or waiting would mend nothing.
    """
    return _insist(lambda _: make(), lambda exc: exc.lasting, failed, now() + timeout, now, sleep)


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

    def attempted(first: bool) -> T:
        if first:
            return attempt(store)
        connection = store.connect()
        try:
            return attempt(connection)
        finally:
            connection.close()

    def is_final(exc: RendezvousConnectionError) -> bool:
        return store.embedded or isinstance(exc, StoreLostError)

    return _insist(attempted, is_final, failed, now() + timeout, now, sleep)


def _insist(
    attempt: Callable[[bool], T],
    is_final: Callable[[RendezvousConnectionError], bool],
    failed: Callable[[RendezvousConnectionError], None],
    deadline: float,
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> T:
    """What ``attempt`` returns, which is told whether it is the first and made again until the deadline."""
    backoff, first = Backoff(), True
    while True:
        try:
            return attempt(first)
        except RendezvousConnectionError as exc:
            left = deadline - now()
            if is_final(exc) or left <= 0:
                raise
            if first:
                failed(exc)
            first = False
            sleep(min(backoff.failed(), left))
