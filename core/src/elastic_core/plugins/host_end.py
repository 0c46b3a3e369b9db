"""Notices of plugins that this host ends: they count for every node that the agent becomes (rule L17)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeAlias

Hear: TypeAlias = "Callable[[str, float, float], None]"
"""Takes why the host ends, in how many seconds, and at which instant of the monotonic clock that was said."""


class HostEnd:
    """Passes on what plugins say by ``leave`` of ``elastic_run_starts``, to the one that hears it at the time."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._lock = now, threading.Lock()
        self._said: tuple[str, float, float] | None = None  # the earliest end
        self._hear: Hear | None = None

    def leave(self, why: str, seconds: float) -> None:
        """Say that this host is taken away in so many seconds. Any thread may call this."""
        said = (why, float(seconds), self._now())
        with self._lock:
            if self._said is None or said[1] + said[2] < self._said[1] + self._said[2]:
                self._said = said
            hear = self._hear
        if hear is not None:
            hear(*said)

    def heard_by(self, hear: Hear) -> None:
        """Pass on what is said from now on, and what was said before; ``hear`` must return at once."""
        with self._lock:
            self._hear, said = hear, self._said
        if said is not None:
            hear(*said)
