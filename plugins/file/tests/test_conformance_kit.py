"""The conformance kit notices what a shared store gets wrong: it wakes no waiter, or replaces an entry."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from elastic_core.rendezvous.backend import Link
from elastic_core.rendezvous.records import Entry
from elastic_rdzv_file.backend import FileBackend
from elastic_rdzv_file.disk import republish
from elastic_testing import connections, linearizability_suite
from elastic_testing.backend_conformance import ProcessConformance
from elastic_testing.connections import MakeBackend
from elastic_testing.faults import LossyCalls
from elastic_testing.line_suite import LineConformance
from elastic_testing.linearizability_suite import LinearizabilityConformance
from elastic_testing.operation_suite import WaitConformance
from elastic_testing.race import PATIENCE

HOUR = 3600.0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WAKE_UP", 0.1)


@pytest.fixture
def deaf(tmp_path: Path, impatient: None) -> MakeBackend:
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


class Unsent(ProcessConformance):
    """An author's first attempt."""

    @pytest.fixture
    def opener(self, tmp_path: Path) -> MakeBackend:
        return lambda run_id: FileBackend.open(tmp_path, run_id)


def test_an_opener_that_cannot_be_sent_is_explained(deaf: MakeBackend) -> None:
    sent = Unsent.sent.__wrapped__  # type: ignore[attr-defined]  # the function in the fixture
    with pytest.raises(pytest.fail.Exception, match="opener must return something picklable: a module's function"):
        sent(Unsent(), lambda run_id: deaf(run_id))
    assert sent(Unsent(), deaf) is deaf


@pytest.fixture
def in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """All the calls are made, however long they take: a busy machine must not hide a defect."""
    monkeypatch.setattr(linearizability_suite, "SECONDS", PATIENCE)


class Overwrites(FileBackend):
    """Writes an entry at the same time as another process replaces that one's."""

    def connect(self) -> FileBackend:
        return Overwrites(self._store)

    def append(self, prev: Link, entry: Link, data: bytes) -> bool:
        if self.read(entry.index) is not None or (prev.index and self.read(prev.index) != prev.id.encode()):
            return False
        time.sleep(0.001)
        republish(self._store.scratch, self._store.ledger.path(entry.index), Entry(entry, data).pack())
        return True


@pytest.mark.usefixtures("in_full")
def test_a_store_that_processes_share_with_a_defect_is_noticed(tmp_path: Path) -> None:
    opens = partial(Overwrites.open, tmp_path)
    with pytest.raises(AssertionError, match="no order of the calls on the ledger"):
        LinearizabilityConformance().test_the_calls_of_several_processes_are_linearizable(opens, None, None, 0)
