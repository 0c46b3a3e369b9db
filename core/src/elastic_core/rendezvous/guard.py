"""A wrapper of a backend's connection that turns unexpected exceptions into errors that name the backend.

A backend may raise :class:`RendezvousConnectionError` and :class:`RendezvousStateError`, which the session handles. Any
other exception is a defect of the backend. It ends the agent, which cannot know what the store holds now, and must not
look like a defect of the agent.
"""
# ruff: noqa: D102  (RendezvousBackend documents these methods)

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from elastic_core.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from elastic_core.rendezvous.backend import (
    Cursor,
    HeartbeatReply,
    Link,
    RendezvousBackend,
    ReplaceableServer,
    RosterRow,
    WorkersStore,
    confirmed_at,
    copy_traits,
    workers_store,
)


class PendingCall(NamedTuple):
    """A call that has not been answered yet."""

    at: float  # when it was made, by the monotonic clock
    may_take: float  # seconds for which a :meth:`RendezvousBackend.wait` may block; 0 for any other call


class GuardedBackend(RendezvousBackend, WorkersStore, ReplaceableServer):
    """A backend's connection; ``connect`` makes further guarded ones. Each method may raise RendezvousError, too.

    Args:
        inner: The connection.
        described: The backend as messages name it, e.g. ``rendezvous backend 'c10d' (elastic-rdzv-c10d 0.1.0)``.
        now: The monotonic clock.
    """

    def __init__(self, inner: RendezvousBackend, described: str, now: Callable[[], float] = time.monotonic) -> None:
        self.inner, self.described, self.now = inner, described, now
        self.asked: PendingCall | None = None
        """The call of this connection's thread that is under way; not those that other threads may make meanwhile."""
        copy_traits(self, inner)
        self.workers_store = workers_store(inner)

    @contextmanager
    def _asking(self, method: str, may_take: float = 0.0) -> Iterator[None]:
        """Guard a call for whose answer this connection's thread waits."""
        self.asked = PendingCall(self.now(), may_take)
        try:
            with self._calling(method):
                yield
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
        with self._calling("close"):
            self.inner.close()

    def enter(self, node_id: str, value: bytes) -> int:
        with self._asking("enter"):
            return self.inner.enter(node_id, value)

    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        with self._asking("amend"):
            self.inner.amend(node_id, revision, value)

    def heartbeat(self, node_id: str, count: int, watch: str | None = None) -> HeartbeatReply:
        with self._asking("heartbeat"):
            reply = self.inner.heartbeat(node_id, count, watch)
            _check_count("the index of its newest entry", reply.head)
            _check_count(f"the revision of the row of {node_id}", reply.revision or 0)
            return reply

    def remove(self, node_id: str) -> None:
        with self._asking("remove"):
            self.inner.remove(node_id)

    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        with self._asking("roster"):
            return self.inner.roster(ids)

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        with self._asking("append"):
            return self.inner.append(prev, entry, data)

    def read(self, index: int) -> bytes | None:
        with self._asking("read"):
            return self.inner.read(index)

    def shrink(self, index: int) -> None:
        with self._asking("shrink"):
            self.inner.shrink(index)

    def forget_workers(self) -> None:
        if isinstance(self.inner, WorkersStore):
            with self._asking("forget_workers"):
                self.inner.forget_workers()

    def erase(self) -> bool:
        with self._asking("erase"):
            return self.inner.erase()

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        with self._asking("wait", timeout):
            now = self.inner.wait(cursor, roster=roster, timeout=timeout)
            _check_count("the index of its newest entry", now.head)
            return now

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
