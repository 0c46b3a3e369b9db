"""The kit notices a store that wakes nobody, soon and in words."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from elastic_core.rendezvous.file import FileBackend
from elastic_core.testing import connections
from elastic_core.testing.backend_conformance import ProcessConformance
from elastic_core.testing.connections import MakeBackend
from elastic_core.testing.wait_suite import WaitConformance

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
