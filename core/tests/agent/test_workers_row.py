"""The part of a row about its node's workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from elastic_core.agent.worker import Worker
from elastic_core.agent.workers import WorkerGroup
from elastic_core.progress import Progress
from elastic_core.protocol.roster import LocalWorkers, SavedStep


def group() -> WorkerGroup:
    """Return a group whose clock, progress and snapshots the test sets."""
    parts: dict[str, Any] = dict.fromkeys(("node", "warden", "output", "reports"), SimpleNamespace())
    group = WorkerGroup(**{**parts, "reports": SimpleNamespace()})
    for tag, (rank, pid) in enumerate([(4, 11), (5, None)]):
        worker = Worker(assignment=SimpleNamespace(rank=rank), streams=None, pid=pid)  # type: ignore[arg-type]
        group._round.workers[tag] = worker  # its rank is enough
    return group


def look(
    group: WorkerGroup,
    now: float = 100.0,
    *,
    snapshot: tuple[int, int] | None = None,
    checkpoint: tuple[int, float] | None = None,
    progress: dict[int, tuple[Progress, float]] | None = None,
    heartbeat: int = 9,
    store: float = 0.00123,
) -> LocalWorkers | None:
    known = progress or {4: (Progress(step=7), 2.0)}
    node: Any = SimpleNamespace(now=lambda: now)
    table: Any = SimpleNamespace(newest=lambda: known, last_checkpoint=lambda: checkpoint)
    group.node, group.progress, group.round.callbacks.snapshot_finders[:] = node, table, [lambda: snapshot]
    return group.describe_workers(heartbeat, store)


def test_pids_steps_and_ages_are_said() -> None:
    assert look(group(), checkpoint=(5, 30.0)) == LocalWorkers(
        heartbeat=9,
        pids=(11, None),
        steps=(7, None),
        seconds=(2.0, None),
        checkpoint=SavedStep(5, 30.0),
        store=0.0012,
    )


def test_nothing_is_said_twice() -> None:
    workers = group()
    assert look(workers) is not None
    assert look(workers, 105.0, progress={4: (Progress(step=7), 7.0)}, heartbeat=12, store=0.2) is None
    assert look(workers, 110.0, progress={4: (Progress(step=8), 1.0)}) is not None
    assert look(workers, 115.0, progress={4: (Progress(step=8), 6.0)}, checkpoint=(8, 1.0)) is not None
    assert look(workers, 120.0, progress={4: (Progress(step=8), 11.0)}, checkpoint=(8, 6.0)) is None


def test_the_age_of_a_snapshot_counts_from_when_it_was_first_seen() -> None:
    workers = group()
    for now, step, seconds in ((100.0, 6, 0.0), (105.0, 6, 5.0), (110.0, 7, 0.0)):
        found = look(workers, now, snapshot=(1, step), progress={4: (Progress(step=int(now)), 0.0)})
        assert found is not None
        assert found.snapshot == SavedStep(step, seconds)
    assert look(workers, 115.0, snapshot=(1, 7), progress={4: (Progress(step=110), 5.0)}) is None
    gone = look(workers, 120.0, progress={4: (Progress(step=110), 10.0)})
    assert gone is not None
    assert gone.snapshot is None
