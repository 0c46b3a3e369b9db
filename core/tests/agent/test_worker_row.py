"""The part of a row about its node's workers, and the times at which it is written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_core.agent.worker import Worker, WorkerRows
from elastic_core.monitors import RunningRound
from elastic_core.progress import Progress
from elastic_core.protocol.roster import LocalWorkers, SavedStep
from elastic_core.protocol.row_delay import SPREAD_ABOVE_MEMBERS, seconds_to_workers_row


def worker(rank: int, pid: int | None) -> Worker:
    return Worker(assignment=SimpleNamespace(rank=rank), streams=None, pid=pid)  # type: ignore[arg-type] # its rank alone


def look(rows: WorkerRows, now: float = 100.0, **changed: Any) -> LocalWorkers | None:
    facts: dict[str, Any] = {
        "workers": [worker(4, 11), worker(5, None)],
        "snapshot": None,
        "heartbeat": 9,
        "store": 0.00123,
    }
    progress, checkpoint = changed.pop("progress", {4: (Progress(step=7), 2.0)}), changed.pop("checkpoint", None)
    table: Any = SimpleNamespace(newest=lambda: progress, last_checkpoint=lambda: checkpoint)
    return rows.look(**{**facts, **changed}, running=RunningRound(1, "run", "a", Path(), progress=table), now=now)


def test_pids_steps_and_ages_are_said() -> None:
    assert look(WorkerRows(), checkpoint=(5, 30.0)) == LocalWorkers(
        heartbeat=9,
        pids=(11, None),
        steps=(7, None),
        seconds=(2.0, None),
        checkpoint=SavedStep(5, 30.0),
        store=0.0012,
    )


def test_nothing_is_said_twice() -> None:
    rows = WorkerRows()
    assert look(rows) is not None
    assert look(rows, 105.0, progress={4: (Progress(step=7), 7.0)}, heartbeat=12, store=0.2) is None
    assert look(rows, 110.0, progress={4: (Progress(step=8), 1.0)}) is not None
    assert look(rows, 115.0, progress={4: (Progress(step=8), 6.0)}, checkpoint=(8, 1.0)) is not None
    assert look(rows, 120.0, progress={4: (Progress(step=8), 11.0)}, checkpoint=(8, 6.0)) is None


def test_the_age_of_a_snapshot_counts_from_when_it_was_first_seen() -> None:
    rows = WorkerRows()
    for now, step, seconds in ((100.0, 6, 0.0), (105.0, 6, 5.0), (110.0, 7, 0.0)):
        found = look(rows, now, snapshot=(1, step), progress={4: (Progress(step=int(now)), 0.0)})
        assert found is not None
        assert found.snapshot == SavedStep(step, seconds)
    assert look(rows, 115.0, snapshot=(1, 7), progress={4: (Progress(step=110), 5.0)}) is None
    gone = look(rows, 120.0, progress={4: (Progress(step=110), 10.0)})
    assert gone is not None
    assert gone.snapshot is None


@pytest.mark.parametrize(
    ("age", "members", "seconds"),
    [
        pytest.param(11.0, 2, 4.0, id="every 5 s"),
        pytest.param(14.5, 2, 5.5, id="not within the first second"),
        pytest.param(15.0, 2, 5.0, id="just now"),
    ],
)
def test_a_small_round_says_it_every_five_seconds(age: float, members: int, seconds: float) -> None:
    assert seconds_to_workers_row(age, members, "a") == pytest.approx(seconds)


def test_the_members_of_a_large_round_say_it_seldom_and_within_one_second() -> None:
    found = [61.0 + seconds_to_workers_row(61.0, 1000, f"n{i}") for i in range(1000)]
    assert 90.0 <= min(found) < 90.1
    assert 90.9 < max(found) <= 91.0
    assert SPREAD_ABOVE_MEMBERS < 1000
