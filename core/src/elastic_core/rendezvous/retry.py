"""How long to wait before the next attempt at a store that fails."""

from __future__ import annotations

from dataclasses import dataclass

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
