"""Stores that answer as they must not, each in one way: the check that is there for it notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pytest

from elastic_core.errors import RendezvousStateError
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.rendezvous.backend import Cursor, HeartbeatReply, Link, RendezvousBackend
from elastic_doctor import store as checks
from elastic_doctor.findings import State

Make: TypeAlias = Callable[[MemoryStore], RendezvousBackend]


def all_checks(make: Make) -> list[str]:
    """Return the names of the checks, in order, until one raises."""
    memory, tried = MemoryStore(), list[str]()
    first, second, stranger = make(memory), make(memory), make(MemoryStore())
    for check in (checks.check_roster, checks.check_ledger, checks.check_wake_up):
        assert check(first, second, tried.append).state is State.OK
    assert checks.check_isolation(first, stranger, tried.append).state is State.OK
    return tried


def test_every_operation_is_tried() -> None:
    assert all_checks(LocalBackend) == [
        "enter",
        "amend",
        "heartbeat",
        "roster",
        "remove",
        "append",
        "read",
        "shrink",
        "wait for a row",
        "wait for an entry",
        "another job id",
    ]


class LastWriterWins(LocalBackend):
    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        with self._opened() as store:
            store.put(replace(store.rows[node_id], revision=revision, value=value))


class NewSerials(LocalBackend):
    def enter(self, node_id: str, value: bytes) -> int:
        super().enter(node_id, value)
        self._store.arrivals += 1
        return self._store.arrivals


class RemovesNothing(LocalBackend):
    def remove(self, node_id: str) -> None:
        pass


class HeartbeatsRevive(LocalBackend):
    def heartbeat(self, node_id: str, count: int, watch: str | None = None) -> HeartbeatReply:
        reply = super().heartbeat(node_id, count, watch)
        return replace(reply, revision=reply.revision or 0)


class TwoWinners(LocalBackend):
    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        return super().append(prev, entry, data) or True


class NoRepeats(LocalBackend):
    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        return self._store.head < entry.index and super().append(prev, entry, data)


class Forgetful(LocalBackend):
    def shrink(self, index: int) -> None:
        self._store.entries[index - 1] = ("", b"lost")


class Deaf(LocalBackend):
    """Nothing wakes it, and it sees no change."""

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        return cursor if cursor != Cursor() else super().wait(cursor, roster=roster, timeout=0)


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        (LastWriterWins, "revision 1 after it was amended to 2"),
        (NewSerials, "two serials"),
        (RemovesNothing, "the roster has"),
        (HeartbeatsRevive, "brings a removed row back"),
        (TwoWinners, "Two writers won one index"),
        (NoRepeats, "counts as lost"),
        (Forgetful, "this is left: b'lost'"),
        (Deaf, "wakes no waiter"),
    ],
)
def test_a_store_that_answers_as_it_must_not_is_told(
    backend: Make, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "PATIENCE", 0.05)
    with pytest.raises(RendezvousStateError, match=words) as refusal:
        all_checks(backend)
    assert "conformance tests" in str(refusal.value)


def test_a_job_that_sees_another_is_told() -> None:
    memory = MemoryStore()
    first, second = LocalBackend(memory), LocalBackend(memory)
    checks.check_roster(first, second, lambda during: None)
    checks.check_ledger(first, second, lambda during: None)
    with pytest.raises(RendezvousStateError, match="A job of another id sees"):
        checks.check_isolation(first, second, lambda during: None)
