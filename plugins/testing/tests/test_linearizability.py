"""The checker of histories tells those that the contract of a backend allows from those that it forbids."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection

import pytest

from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.rendezvous.backend import ORIGIN, Cursor, HeartbeatReply, Link, RosterRow
from elastic_testing import linearizability_suite
from elastic_testing.connections import MakeBackend
from elastic_testing.history import Call, check_history
from elastic_testing.linearizability_suite import LinearizabilityConformance
from elastic_testing.race import PATIENCE

A, B, AFTER_A = Link(1, "a"), Link(1, "b"), Link(2, "c")


def call(when: str, method: str, *arguments: object, result: object = None, by: str = "p") -> Call:
    """A call; ``when`` is a picture: '  [--]' begins at 2 and returns at 5; of '  [--?' the outcome is not known."""
    invoked, returned = when.index("["), None if when.endswith("?") else len(when) - 1
    return Call(by, method, arguments, result, invoked, returned)


def append(when: str, entry: Link, succeeded: bool | None, *, on: Link = ORIGIN) -> Call:
    return call(when, "append", on, entry, entry.id.encode(), result=succeeded)


def read(when: str, index: int, data: bytes | None) -> Call:
    return call(when, "read", index, result=data)


def wait(when: str, head: int, found: int, *, by: str = "p") -> Call:
    return call(when, "wait", Cursor(head), False, result=Cursor(found), by=by)


def watch(when: str, version: int, found: int) -> Call:
    return call(when, "wait", Cursor(0, version), True, result=Cursor(0, found))


def enter(when: str, node: str = "n", serial: int | None = 1) -> Call:
    return call(when, "enter", node, b"0", result=serial)


def amend(when: str, revision: int) -> Call:
    return call(when, "amend", "n", revision, b"%d" % revision)


def remove(when: str) -> Call:
    return call(when, "remove", "n")


def heartbeat(when: str, count: int, head: int = 0, *, revision: int | None = None, by: str = "p") -> Call:
    return call(when, "heartbeat", "n", count, None, result=HeartbeatReply(head, revision, None), by=by)


def watched(when: str, count: int | None) -> Call:
    return call(when, "heartbeat", "stranger", 1, "n", result=HeartbeatReply(0, None, count))


def roster(when: str, *rows: RosterRow) -> Call:
    return call(when, "roster", None, result=list(rows))


def row(revision: int = 0, heartbeat: int = 0, *, node: str = "n", serial: int = 1) -> RosterRow:
    return RosterRow(node, serial, revision, b"%d" % revision, heartbeat)


ALLOWED = {
    "nothing happened": [],
    "what was written is read": [append("[-]", A, True), read("    [-]", 1, b"a"), read("    [-]", 2, None)],
    "a concurrent read may come before the append": [append("[---]", A, True), read(" [-]", 1, None)],
    "a concurrent read may come after the append": [append("[---]", A, True), read(" [-]", 1, b"a")],
    "the first of two appends at one index wins": [append("[----]", A, True), append(" [--]", B, False)],
    "of a chain": [append("[-]", A, True), append("   [-]", AFTER_A, True, on=A)],
    "a fork is refused": [append("[-]", A, True), append("   [-]", AFTER_A, False, on=B)],
    "an entry on one that is not there is refused": [append("[-]", AFTER_A, False, on=A)],
    "the same entry again": [append("[-]", A, True), append("   [-]", A, True)],
    "an append of unknown outcome that never took effect": [append("[-?", A, None), read("     [-]", 1, None)],
    "an append of unknown outcome that took effect": [append("[-?", A, None), read("     [-]", 1, b"a")],
    "an append of unknown outcome that took effect late": [
        append("[-?", A, None),
        read("     [-]", 1, None),
        read("         [-]", 1, b"a"),
    ],
    "an append of unknown outcome that lost": [append("[-?", A, None), append("     [-]", B, True)],
    "the head of a waiter that is told of something new may be behind": [
        append("[-]", A, True),
        append("   [-]", AFTER_A, True, on=A),
        wait("      [-]", 0, 1),
    ],
    "a wait that is over before the append": [wait("[-]", 0, 0), append("   [-]", A, True)],
    "the first head that a process is told with a heartbeat may be behind": [
        append("[-]", A, True),
        heartbeat("   [-]", 1, 0, by="q"),
    ],
    "a row is amended and removed": [
        enter("[-]"),
        roster("   [-]", row()),
        amend("      [-]", 2),
        roster("         [-]", row(2)),
        amend("            [-]", 1),
        roster("               [-]", row(2)),
        remove("                  [-]"),
        roster("                     [-]"),
        amend("                        [-]", 3),
        roster("                           [-]"),
    ],
    "an amendment of unknown outcome that took effect late": [
        enter("[-]"),
        amend("    [-?", 1),
        roster("        [-]", row()),
        roster("            [-]", row(1)),
    ],
    "a removal of unknown outcome that took effect late": [
        enter("[-]"),
        remove("    [-?"),
        roster("        [-]", row()),
        roster("            [-]"),
    ],
    "rows of a listing may be of different instants": [
        enter("[-]"),
        enter("   [-]", "m", 2),
        roster("       [-------]", row(1), row(node="m", serial=2)),
        amend("        [-]", 1),
    ],
    "a heartbeat may be listed with a value of another instant": [
        enter("[-]"),
        roster("   [------]", row(0, 1)),
        amend("    [-]", 1),
        heartbeat("       [-]", 1, revision=1),
    ],
    "a heartbeat is watched": [
        enter("[-]"),
        heartbeat("   [-]", 7, revision=0),
        watched("      [-]", 7),
        watched("[-]", None),
    ],
    "serials of rows that enter at once come in any order": [enter("[--]", "n", 2), enter(" [-]", "m", 1)],
    "a version returns when nothing has changed": [watch("[-]", 0, 5), watch("   [-]", 5, 5)],
    "a version returns before a change": [watch("[-]", 0, 5), watch("   [---]", 5, 5), enter("    [-]")],
}

FORBIDDEN = {
    "a stale read": [append("[-]", A, True), read("   [-]", 1, None)],
    "a read that goes back": [append("[----------]", A, True), read(" [-]", 1, b"a"), read("     [-]", 1, None)],
    "a read of what nobody wrote": [read("[-]", 1, b"x")],
    "a read before the append": [read("[-]", 1, b"a"), append("   [-]", A, True)],
    "an append that was lost": [append("[-]", A, True), append("   [-]", B, True), read("      [-]", 1, b"b")],
    "two entries at one index": [append("[-]", A, True), append("[-]", B, True)],
    "two entries that are read at one index": [
        append("[-?", A, None),
        append("[-?", B, None),
        read("     [-]", 1, b"a"),
        read("         [-]", 1, b"b"),
    ],
    "an entry that another process had lost to": [
        append("[-]", A, True),
        append("   [-]", B, False),
        read("      [-]", 1, b"b"),
    ],
    "an append that fails for no reason": [append("[-]", A, False)],
    "an entry that was refused and stands there": [append("[-]", A, False), read("   [-]", 1, b"a")],
    "an entry on one that is not there": [append("[-]", AFTER_A, True, on=A)],
    "an entry on another one": [append("[-]", A, True), append("   [-]", AFTER_A, True, on=B)],
    "a repeated append that fails": [append("[-]", A, True), append("   [-]", A, False)],
    "a fork of unknown outcome": [
        append("[-]", A, True),
        append("   [-?", AFTER_A, None, on=B),
        read("        [-]", 2, b"c"),
    ],
    "an append of unknown outcome before it began": [read("[-]", 1, b"a"), append("   [-?", A, None)],
    "a wait that sleeps through an append": [append("[-]", A, True), wait("   [-]", 0, 0)],
    "a wait that returned before the append": [wait("[-]", 0, 1), append("   [-]", A, True)],
    "the head of a process that has seen more": [append("[-]", A, True), heartbeat("   [-]", 1, 0)],
    "a head that is not there": [append("[-]", A, True), heartbeat("   [-]", 1, 2)],
    "a row that is amended backwards": [
        enter("[-]"),
        amend("   [-]", 1),
        roster("      [-]", row(1)),
        roster("         [-]", row()),
    ],
    "an amendment that was lost": [enter("[-]"), amend("   [-]", 1), roster("      [-]", row())],
    "an older amendment that wins": [
        enter("[-]"),
        amend("   [-]", 2),
        amend("      [-]", 1),
        roster("         [-]", row(1)),
    ],
    "a listing that misses a row": [enter("[-]"), roster("   [-]")],
    "a row before it entered": [roster("[-]", row()), enter("   [-]")],
    "a row that comes back": [enter("[-]"), remove("   [-]"), roster("      [-]", row())],
    "an amendment that makes a row": [
        enter("[-]"),
        remove("   [-]"),
        amend("      [-]", 1),
        roster("         [-]", row(1)),
    ],
    "a heartbeat that is behind": [enter("[-]"), heartbeat("   [-]", 7, revision=0), watched("      [-]", 0)],
    "a heartbeat that goes back": [
        enter("[-]"),
        heartbeat("   [------]", 7, revision=0),
        roster("    [-]", row(0, 7)),
        watched("        [-]", 0),
    ],
    "a row that nobody entered": [roster("[-]", row())],
    "two serials": [enter("[-]"), enter("   [-]", serial=2)],
    "one serial for two": [enter("[-]"), enter("   [-]", "m", 1)],
    "serials that do not grow": [enter("[-]", "n", 2), enter("   [-]", "m", 1)],
    "rows in disorder": [
        enter("[-]"),
        enter("   [-]", "m", 2),
        roster("      [-]", row(node="m", serial=2), row()),
    ],
    "a row that cannot be read": [enter("[-]"), roster("   [-]", RosterRow.unreadable("n", "planted"))],
    "a wait that sleeps through a change of the roster": [
        watch("[-]", 0, 5),
        enter("   [-]"),
        watch("      [-]", 5, 5),
    ],
}


@pytest.mark.parametrize("history", ALLOWED.values(), ids=ALLOWED)
def test_a_history_that_the_contract_allows_passes(history: list[Call]) -> None:
    check_history(history)
    check_history(history[::-1])


@pytest.mark.parametrize("history", FORBIDDEN.values(), ids=FORBIDDEN)
def test_a_history_that_the_contract_forbids_is_noticed(history: list[Call]) -> None:
    for calls in (history, history[::-1]):
        with pytest.raises(AssertionError):
            check_history(calls)


def test_a_contradiction_is_explained() -> None:
    with pytest.raises(AssertionError) as caught:
        check_history(FORBIDDEN["a stale read"])
    said = str(caught.value)
    assert "no order of the calls on the ledger explains the result of one:\n  p, from 0.000" in said
    assert "can only have been:\n  (('a', b'a'),)" in said
    assert "the last calls before it:\n  p, from 0.000000 to 0.000000: append(" in said


@pytest.fixture(autouse=True)
def in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """All the calls are made, however long they take: a busy machine must not hide a defect."""
    monkeypatch.setattr(linearizability_suite, "SECONDS", PATIENCE)


def linearizable(opens: MakeBackend) -> None:
    """The suite's test."""
    LinearizabilityConformance().test_the_calls_of_several_processes_are_linearizable(opens, None, None, 0)


class Broken(LocalBackend):
    """One that makes more of its kind."""

    def connect(self) -> LocalBackend:
        return type(self)(self._store)


class ReadsACopy(Broken):
    """The newest entry is not in the copy yet."""

    def read(self, index: int) -> bytes | None:
        return super().read(index) if index < self._store.head else None


class ChecksBeforeItWrites(Broken):
    """An append is not one step: others may write between the check and the write."""

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        fits = self.read(entry.index) is None and (prev == ORIGIN or self.read(prev.index) == prev.id.encode())
        time.sleep(0.001)
        if fits:
            self._store.entries[entry.index - 1 :] = [(entry.id, data)]
        return fits


class LosesEntries(Broken):
    """One append in ten is acknowledged and not written."""

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        return super().append(prev, entry, data) if entry.index % 10 else self._store.head == prev.index


class LosesAmendments(Broken):
    """One in ten."""

    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        if revision % 10:
            super().amend(node_id, revision, value)


class ListsAllButTheNewest(Broken):
    """A node that has just entered is not listed."""

    def roster(self, ids: Collection[str] | None = None) -> list[RosterRow]:
        return [row for row in super().roster(ids) if row.serial < self._store.arrivals]


class SleepsThroughChanges(Broken):
    """A store whose waiters miss changes before the call."""

    def wait(self, cursor: Cursor, *, roster: bool, timeout: float) -> Cursor:
        return cursor if cursor.head else super().wait(cursor, roster=roster, timeout=timeout)


@pytest.mark.parametrize(
    "backend",
    [
        ReadsACopy,
        ChecksBeforeItWrites,
        LosesEntries,
        LosesAmendments,
        ListsAllButTheNewest,
        SleepsThroughChanges,
    ],
)
def test_a_store_with_a_defect_is_noticed(backend: type[LocalBackend]) -> None:
    jobs: dict[str, MemoryStore] = defaultdict(MemoryStore)
    with pytest.raises(AssertionError, match="no order of the calls"):
        linearizable(lambda run_id: backend(jobs[run_id]))


def test_a_worker_that_fails_is_shown() -> None:
    class Raises(Broken):
        def amend(self, node_id: str, revision: int, value: bytes) -> None:
            raise ZeroDivisionError("by design")

    jobs: dict[str, MemoryStore] = defaultdict(MemoryStore)
    with pytest.raises(AssertionError, match=r"a worker has failed:(?s:.*)by design"):
        linearizable(lambda run_id: Raises(jobs[run_id]))
