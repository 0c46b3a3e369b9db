"""Notices of plugins that this host ends: they count for every node that the agent becomes (rule L17)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeAlias

Listener: TypeAlias = "Callable[[str, float, float], None]"
"""Takes why the host ends, in how many seconds, and at which instant of the monotonic clock that was said."""


class HostEnd:
    """Passes the notices of plugins, by ``leave`` of ``elastic_run_starts``, to one listener at a time."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._lock = now, threading.Lock()
        self._said: tuple[str, float, float] | None = None  # the earliest end
        self._listener: Listener | None = None

    def leave(self, why: str, seconds: float) -> None:
        """Say that this host is taken away in so many seconds. Any thread may call this."""
        said = (why, float(seconds), self._now())
        with self._lock:
            if self._said is None or said[1] + said[2] < self._said[1] + self._said[2]:
                self._said = said
            listener = self._listener
        if listener is not None:
            listener(*said)

    def set_listener(self, listener: Listener) -> None:
        """Pass later notices to ``listener``, and at once the earliest end so far; it must return at once."""
        with self._lock:
            self._listener, said = listener, self._said
        if said is not None:
            listener(*said)
