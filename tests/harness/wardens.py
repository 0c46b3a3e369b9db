"""The test's side of a warden: what it has said so far, and waiting for what it will say."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable
from typing import TypeVar

from elastic_core.warden.client import Warden
from elastic_core.warden.messages import Exited, Fenced, SpawnFailed, StopCompleted, WardenEvent

PATIENCE = 60.0
"""Seconds after which what a test waits for will not come any more."""

E = TypeVar("E")


class Listener:
    """Listens to a warden."""

    def __init__(self, warden: Warden) -> None:
        self.warden = warden
        self.heard: list[WardenEvent] = []
        self.over: list[StopCompleted | Fenced] = []
        """Those of them that said that all workers are gone."""
        self._tags = 0

    def tag(self) -> int:
        """Return a number for the next program."""
        self._tags += 1
        return self._tags

    def wait(self, kind: type[E], matches: Callable[[E], bool] = lambda _: True, *, since: int = 0) -> E:
        """Wait for the first event of this kind that matches, past or to come; ``since`` skips the events before."""
        seen = since
        end = time.monotonic() + PATIENCE
        while True:
            for event in self.heard[seen:]:
                seen += 1
                if isinstance(event, kind) and matches(event):
                    return event
            ready, _, _ = select.select([self.warden], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no {kind.__name__} came; these did: {self.heard}"
            self.heard += (news := self.warden.receive())
            self.over += [
                event for event in news if isinstance(event, StopCompleted | Fenced) and self.warden.is_over(event)
            ]

    def failure(self, tag: int) -> SpawnFailed:
        """Return the reason why the program ``tag`` was not started."""
        return self.wait(SpawnFailed, lambda event: event.tag == tag)

    def end(self, tag: int) -> Exited:
        """Return the end of the program ``tag``."""
        return self.wait(Exited, lambda event: event.tag == tag)

    def all_of(self, kind: type[E]) -> list[E]:
        """Events of this kind so far."""
        return [event for event in self.heard if isinstance(event, kind)]


def gone(pid: int) -> None:
    """Wait until a process has ended, and fail if it does not."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            assert select.select([pidfd], [], [], PATIENCE)[0], f"process {pid} is still there"
        finally:
            os.close(pidfd)


def wait_until(happened: Callable[[], bool]) -> bool:
    """Wait for a condition without an event; whether it happened."""
    end = time.monotonic() + PATIENCE
    while not happened() and time.monotonic() < end:
        time.sleep(0.01)
    return happened()
