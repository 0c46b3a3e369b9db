"""Seals on the values in a store, so that a value by a writer without the job's token is refused.

A seal is a line before the value: HMAC-SHA256 over the value and its place, under a key of the job. A ledger entry's
place is its index; the ids of the entry and of the one before are part of the entry. A row's place is its node and its
revision. So a value cannot be moved to another place, nor to another job, which has another key. Heartbeats, serials
and tombstones are not sealed: ``docs/security.md`` says what an attacker can do with those.
"""
# ruff: noqa: D102  (RendezvousBackend documents the methods of SealedBackend)

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous.backend import SEAL_BYTES, TOMBSTONE, Link, RendezvousBackend, RosterRow
from elastic_core.rendezvous.guard import GuardedBackend
from elastic_core.rendezvous.job_token import TOKEN_VARIABLE, JobToken, hmac_sha256

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
