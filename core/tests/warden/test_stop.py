"""When a stop sends which signal."""

from __future__ import annotations

import signal

import pytest

from elastic_core.warden.stop import StopInProgress


@pytest.mark.parametrize(
    ("signum", "grace", "due"),
    [
        pytest.param(signal.SIGTERM, 30.0, 130.0, id="SIGTERM has all of the grace"),
        pytest.param(signal.SIGINT, 30.0, 125.0, id="SIGTERM comes 5 s before the end"),
        pytest.param(signal.SIGUSR1, 10.0, 108.0, id="or in the last fifth"),
        pytest.param(signal.SIGINT, 0.0, 100.0, id="no grace"),
    ],
)
def test_sigterm_follows_another_signal_within_the_grace(signum: int, grace: float, due: float) -> None:
    stop = StopInProgress(signum, grace, now=100.0)
    assert (stop.next_deadline(), stop.deadline) == (due, 100.0 + grace)


def test_a_deadline_that_comes_nearer_leaves_no_time_for_sigterm() -> None:
    stop = StopInProgress(signal.SIGINT, 30.0, now=100.0)
    stop.deadline = 101.0
    assert (stop.next_deadline(), stop.is_sigterm_due()) == (101.0, False)
