"""A wrapper of a backend's connection that turns unexpected exceptions into errors that name the backend.

A backend may raise :class:`RendezvousConnectionError` and :class:`RendezvousStateError`, which the session handles. Any
other exception is a defect of the backend. It ends the agent, which cannot know what the store holds now, and must not
look like a defect of the agent.
"""
# ruff: noqa: D102  (RendezvousBackend documents these methods)

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from elastic_core.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from elastic_core.rendezvous.backend import (
    Cursor,
    HeartbeatReply,
    RendezvousBackend,
    ReplaceableServer,
    WorkersStore,
    WrappedBackend,
    confirmed_at,
    workers_store,
)


class PendingCall(NamedTuple):
    """A call that has not been answered yet."""

    at: float  # when it was made, by the monotonic clock
    may_take: float  # seconds for which a :meth:`RendezvousBackend.wait` may block; 0 for any other call


class GuardedBackend(WrappedBackend, WorkersStore, ReplaceableServer):
    """A backend's connection; ``connect`` makes further guarded ones. Each method may raise RendezvousError, too.

    ``described`` is the backend as messages name it, e.g. ``rendezvous backend 'c10d' (elastic-rdzv-c10d 0.1.0)``.
    """

    def __init__(self, inner: RendezvousBackend, described: str, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(inner)
        self.described, self.now = described, now
        self.asked: PendingCall | None = None
        """The call of this connection's thread that is under way; not those that other threads may make meanwhile."""
        self.closed = False
        self.workers_store = workers_store(inner)

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method for whose answer this connection's thread waits."""
        self.asked = PendingCall(self.now(), named.get("timeout", 0.0))
        try:
            with self._calling(method):
                found = super().call(method, *arguments, **named)
                if isinstance(found, (Cursor, HeartbeatReply)):
                    _check_count("the index of its newest entry", found.head)
                if isinstance(found, HeartbeatReply):
                    _check_count(f"the revision of the row of {arguments[0]}", found.revision or 0)
                return found
        finally:
            self.asked = None

    @contextmanager
    def _calling(self, method: str) -> Iterator[None]:
        try:
            yield
        except (RendezvousConnectionError, RendezvousStateError):
            raise
        except Exception as exc:
            *_, raised = traceback.extract_tb(exc.__traceback__)
            raise RendezvousError(
                f"The {self.described} raised in {method}: {type(exc).__name__}: {exc}.",
                hint=f"Raised at {raised.filename}:{raised.lineno}. "
                "A backend may raise only RendezvousConnectionError and RendezvousStateError.",
            ) from exc

    def connect(self) -> GuardedBackend:
        with self._calling("connect"):
            return GuardedBackend(self.inner.connect(), self.described, self.now)

    def close(self) -> None:
        self.closed = True
        with self._calling("close"):
            self.inner.close()

    def forget_workers(self) -> None:
        self.call("forget_workers")

    def confirmed_at(self, max_age: float | None = None) -> float:
        with self._calling("confirmed_at"):
            return confirmed_at(self.inner, max_age)


def _check_count(what: str, count: int) -> None:
    """Refuse a negative number from the store: a node that compares it with its own would do so for ever."""
    if count < 0:
        raise RendezvousStateError(
            f"The store gives {count} as {what}.",
            hint="Something else writes to the store: use another --rdzv_id, or keep it out (docs/security.md).",
        )
