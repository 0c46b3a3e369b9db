"""The kit notices what stores get wrong: that they wake nobody, forget what they did, or free what was taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.rendezvous.backend import Link
from elastic_rdzv_file.backend import FileBackend
from elastic_testing import connections, held_suite
from elastic_testing.backend_conformance import ProcessConformance
from elastic_testing.connections import MakeBackend
from elastic_testing.faults import LossyCalls, Lost
from elastic_testing.held_suite import HeldLineConformance, SilentLineConformance
from elastic_testing.ledger_suite import LedgerConformance
from elastic_testing.line_suite import LineConformance
from elastic_testing.wait_suite import WaitConformance

HOUR = 3600.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WAKE_UP", 0.1)


@pytest.fixture
def deaf(tmp_path: Path) -> MakeBackend:
    """Opens a store that looks for changes before it sleeps, and when the sleep is over, and is woken by nothing."""
    return partial(FileBackend.open, tmp_path, poll_interval=HOUR)


def not_woken(by: str) -> str:
    return rf"wait\(\) did not return within 0.1 s after {by}: is the waiter woken\?"


@pytest.mark.parametrize(
    ("test", "by"),
    [
        (WaitConformance.test_an_append_wakes_a_waiter, "append"),
        (WaitConformance.test_a_roster_change_wakes_a_waiter_that_asks_for_them, "enter"),
    ],
)
def test_a_waiter_that_is_not_woken_is_noticed(deaf: MakeBackend, test: Callable[..., None], by: str) -> None:
    with pytest.raises(AssertionError, match=not_woken(rf"{by}\(\)")):
        test(WaitConformance(), lambda: deaf("job"))


def test_a_waiter_in_another_process_that_is_not_woken_is_noticed(deaf: MakeBackend) -> None:
    test = ProcessConformance.test_an_append_wakes_a_waiter_in_another_process
    with pytest.raises(AssertionError, match=not_woken(r"append\(\) in another process")):
        test(ProcessConformance(), deaf("job"), lambda: deaf("job"), deaf)


def test_a_waiter_that_looks_again_and_again_is_noticed(tmp_path: Path) -> None:
    line = LossyCalls()
    polling = line.through(partial(FileBackend.open, tmp_path, poll_interval=0.3))
    with pytest.raises(AssertionError, match="a waiter's thread ran"):
        LineConformance().test_a_waiter_asks_for_nothing_while_nothing_happens(lambda: polling("job"), line)


def test_a_line_that_the_connections_do_not_go_over_is_noticed() -> None:
    test = LineConformance.test_a_removal_of_unknown_outcome_is_repeated_without_harm
    stores: dict[str, MemoryStore] = {}
    with pytest.raises(AssertionError, match="do its connections go over the line"):
        test(
            LineConformance(), lambda job: LocalBackend(stores.setdefault(job, MemoryStore())), LossyCalls(), Lost.REPLY
        )


class Unsent(ProcessConformance):
    """What an author writes at first."""

    @pytest.fixture
    def opener(self, tmp_path: Path) -> MakeBackend:
        return lambda run_id: FileBackend.open(tmp_path, run_id)


def test_an_opener_that_cannot_be_sent_is_explained(deaf: MakeBackend) -> None:
    sent = Unsent.sent.__wrapped__  # type: ignore[attr-defined]  # the function in the fixture
    with pytest.raises(pytest.fail.Exception, match="opener must return something picklable: a module's function"):
        sent(Unsent(), lambda run_id: deaf(run_id))
    assert sent(Unsent(), deaf) is deaf


class Forgetful(LocalBackend):
    """Does not know its own entry again, and gives away what was shrunk."""

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        store = self._store
        if entry.index <= store.head and store.entries[entry.index - 1][1] == b"":
            store.entries[entry.index - 1] = (entry.id, data)
            return True
        return entry.index > store.head and super().append(prev, entry, data)


def forgetful() -> MakeBackend:
    jobs: dict[str, MemoryStore] = {}
    return lambda run_id: Forgetful(jobs.setdefault(run_id, MemoryStore()))


def test_an_append_that_fails_when_it_is_repeated_is_noticed() -> None:
    line = LossyCalls()
    test = LineConformance.test_an_append_of_unknown_outcome_is_resolved_by_another
    with pytest.raises(AssertionError, match="it is there, or it lands now"):
        test(LineConformance(), line.through(forgetful()), line, Lost.REPLY)


def test_a_tombstone_that_can_be_written_over_is_noticed() -> None:
    make = forgetful()
    test = LedgerConformance.test_an_old_entry_shrinks_and_its_place_stays_taken
    with pytest.raises(AssertionError, match="a place is never free again"):
        test(LedgerConformance(), make("job"), lambda: make("job"), b"value")


class Unordered(LocalBackend):
    """Takes every amendment, also one that is older than what it holds."""

    def amend(self, node_id: str, revision: int, value: bytes) -> None:
        with self._store.changed:
            row = self._store.rows[node_id]
            self._store.put(replace(row, revision=revision, value=value))


def test_a_request_that_arrives_late_and_undoes_what_came_after_it_is_noticed() -> None:
    jobs: dict[str, MemoryStore] = {}
    line = LossyCalls()
    make = line.through(lambda run_id: Unordered(jobs.setdefault(run_id, MemoryStore())))
    test = HeldLineConformance.test_a_request_that_arrives_after_its_connection_was_given_up_undoes_nothing
    with pytest.raises(AssertionError, match="node"):
        test(HeldLineConformance(), make, line, "amend")


def test_an_operation_that_waits_for_ever_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_suite, "PATIENCE", 0.2)
    jobs: dict[str, MemoryStore] = {}
    line = LossyCalls()
    make = line.through(lambda run_id: LocalBackend(jobs.setdefault(run_id, MemoryStore())))
    suite = SilentLineConformance
    test = suite.test_an_operation_without_an_answer_ends_with_an_error_and_the_store_is_as_good_as_before
    with pytest.raises(AssertionError, match=r"append\(\) without an answer did not end within 0.2 s: no timeout\?"):
        test(suite(), make, line)
    line.release()
