"""The kit notices what stores get wrong: that they wake no waiter, forget what they did, or free what was taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.rendezvous.backend import Link
from elastic_testing import line_suite
from elastic_testing.connections import MakeBackend
from elastic_testing.faults import LossyCalls, Lost
from elastic_testing.line_suite import HeldLineConformance, LineConformance, SilentLineConformance
from elastic_testing.operation_suite import LedgerConformance


def test_a_line_that_the_connections_do_not_go_over_is_noticed() -> None:
    test = LineConformance.test_a_removal_of_unknown_outcome_is_repeated_without_harm
    stores: dict[str, MemoryStore] = {}
    with pytest.raises(AssertionError, match="do its connections go over the line"):
        test(
            LineConformance(), lambda job: LocalBackend(stores.setdefault(job, MemoryStore())), LossyCalls(), Lost.REPLY
        )


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
    monkeypatch.setattr(line_suite, "PATIENCE", 0.2)
    jobs: dict[str, MemoryStore] = {}
    line = LossyCalls()
    make = line.through(lambda run_id: LocalBackend(jobs.setdefault(run_id, MemoryStore())))
    suite = SilentLineConformance
    test = suite.test_an_operation_without_an_answer_ends_with_an_error_and_the_store_is_as_good_as_before
    with pytest.raises(AssertionError, match=r"append\(\) without an answer did not end within 0.2 s: no timeout\?"):
        test(suite(), make, store := make("job"), store.connect, line)
    line.release()
