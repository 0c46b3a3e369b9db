"""Wrappers of a backend's connection: one names the backend in errors, the other seals what is written.

A backend may raise :class:`RendezvousConnectionError` and :class:`RendezvousStateError`, which the session handles. Any
other exception is a defect of the backend. It ends the agent, which cannot know what the store holds now, and must not
look like a defect of the agent.

A seal is a line before a value, so that a value by a writer without the job's token is refused: HMAC-SHA256 over the
value and its place, under a key of the job. A ledger entry's place is its index; the ids of the entry and of the one
before are part of the entry. A row's place is its node and its revision. So a value cannot be moved to another place,
nor to another job, which has another key. Heartbeats, serials and tombstones are not sealed: ``docs/security.md`` says
what an attacker can do with those.
"""
# ruff: noqa: D102  (RendezvousBackend documents these methods)

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from elastic_core.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from elastic_core.rendezvous.backend import (
    SEAL_BYTES,
    STRANGER_HINT,
    TOMBSTONE,
    Cursor,
    HeartbeatReply,
    Link,
    RendezvousBackend,
    ReplaceableServer,
    RosterRow,
    WorkersStore,
    WrappedBackend,
    confirmed_at,
    workers_store,
)
from elastic_core.rendezvous.job_token import TOKEN_VARIABLE, JobToken, hmac_sha256


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
        raise RendezvousStateError(f"The store gives {count} as {what}.", hint=STRANGER_HINT)


# Seals ---------------------------------------------------------------------------------------------------------------

SEAL_PREFIX = b"elastic-seal-1 "
SEAL_HINT = (
    f"Start every node of a job with the same {TOKEN_VARIABLE} (or token_file=), or none of them with any; or use "
    "another --rdzv_id. If all nodes have the same one, another process writes to the store: docs/security.md."
)


class Seal:
    """Seals the values of one job and checks their seals."""

    def __init__(self, token: JobToken, job_id: str) -> None:
        self._key = token.key(job_id)
        self.fingerprint = hmac_sha256(self._key, b"fingerprint")[:8].hex()  # a name of the key that does not reveal it

    def entry(self, index: int, data: bytes) -> bytes:
        """Seal a ledger entry."""
        return self._sealed(b"entry %d " % index, data)

    def row(self, node_id: str, revision: int, value: bytes) -> bytes:
        """Seal the value of a roster row."""
        return self._sealed(_row_place(node_id, revision), value)

    def opened_entry(self, index: int, sealed: bytes) -> bytes:
        """Return what :meth:`entry` has sealed; raise RendezvousStateError if it is not sealed with this key."""
        return self._opened(b"entry %d " % index, sealed, f"Entry {index}")

    def opened_row(self, node_id: str, revision: int, sealed: bytes) -> bytes:
        """Return what :meth:`row` has sealed; raise RendezvousStateError if it is not sealed with this key."""
        return self._opened(_row_place(node_id, revision), sealed, f"The row of {node_id!r}")

    def _sealed(self, place: bytes, value: bytes) -> bytes:
        line = f"{self.fingerprint} {hmac_sha256(self._key, place + value).hex()}\n"
        return SEAL_PREFIX + line.encode() + value

    def _opened(self, place: bytes, sealed: bytes, what: str) -> bytes:
        import hmac  # see job_token.hmac_sha256

        value = sealed[SEAL_BYTES:]
        if hmac.compare_digest(sealed, self._sealed(place, value)):
            return value
        raise RendezvousStateError(f"{what} {self._fault(sealed)}.", hint=SEAL_HINT)

    def _fault(self, sealed: bytes) -> str:
        if not sealed.startswith(SEAL_PREFIX):
            return "has no seal, and this node has a job token: its writer has none"
        if (theirs := fingerprint(sealed)) != self.fingerprint:
            return f"is sealed with another job token ({theirs}) than this node's ({self.fingerprint})"
        return "is forged or damaged: its seal does not fit"


def fingerprint(sealed: bytes) -> str:
    """Return the name of the key with which a value claims to be sealed; '' for a value without a seal."""
    if not sealed.startswith(SEAL_PREFIX):
        return ""
    said = sealed[len(SEAL_PREFIX) :][:16].decode("ascii", "replace")
    return said if said.isalnum() else "unreadable"


def _row_place(node_id: str, revision: int) -> bytes:
    name = node_id.encode(errors="surrogateescape")
    return b"row %d %d %b " % (revision, len(name), name)


class SealedBackend(GuardedBackend):
    """A guarded connection that seals all values; ``connect`` makes further ones."""

    def __init__(
        self, inner: RendezvousBackend, described: str, seal: Seal, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(inner, described, now)
        self._seal = seal
        self._rows: dict[str, tuple[RosterRow, bytes]] = {}
        """Of each row in the newest read: the row as it was sealed, and its value. Usually few of a thousand change."""

    def connect(self) -> SealedBackend:
        return SealedBackend(super().connect().inner, self.described, self._seal, self.now)

    def enter(self, node_id: str, value: bytes) -> int:
        serial: int = super().enter(node_id, self._seal.row(node_id, 0, value))
        return serial

    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        super().amend(node_id, revision, self._seal.row(node_id, revision, value))

    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        before, self._rows = self._rows, {}
        return [row if row.broken else self._opened(row, before.get(row.node_id)) for row in super().roster(ids)]

    def _opened(self, row: RosterRow, before: tuple[RosterRow, bytes] | None) -> RosterRow:
        if before is None or (before[0].revision, before[0].value) != (row.revision, row.value):
            try:
                before = row, self._seal.opened_row(row.node_id, row.revision, row.value)
            except RendezvousStateError as exc:
                return RosterRow.unreadable(row.node_id, str(exc))
        self._rows[row.node_id] = before
        return replace(row, value=before[1])

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        appended: bool = super().append(prev, entry, self._seal.entry(entry.index, data))
        return appended

    def read(self, index: int) -> bytes | None:
        data = super().read(index)
        try:
            return self._opened_entry(index, data)
        except RendezvousStateError:
            if (there := super().read(index)) == data:
                raise
            return self._opened_entry(index, there)  # the first came with a notification, which is only a hint

    def _opened_entry(self, index: int, data: bytes | None) -> bytes | None:
        return data if data is None or data == TOMBSTONE else self._seal.opened_entry(index, data)


def protect(
    inner: RendezvousBackend,
    described: str,
    token: JobToken | None,
    job_id: str,
    now: Callable[[], float] = time.monotonic,
) -> GuardedBackend:
    """Return a backend's connection as a node uses it: guarded, and sealed if the job has a token."""
    if token is None:
        return GuardedBackend(inner, described, now)
    return SealedBackend(inner, described, Seal(token, job_id), now)
