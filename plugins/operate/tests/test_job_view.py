"""The view of a job in its store for a process that does not take part."""

from __future__ import annotations

from dataclasses import replace

import pytest
from session_parts import job
from views import halted, incident, live, seen, settings, start, then, with_counters

from elastic_core.errors import RendezvousRefusedError
from elastic_core.incidents import Failure
from elastic_core.plugins.local_backend import LocalBackend, MemoryStore
from elastic_core.protocol.counters import as_record
from elastic_core.protocol.entries import Closed, HaltReason, HostLosses, SpentRestart
from elastic_core.protocol.failure_detector import Observation
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.roster import LocalWorkers, Phase, SavedStep
from elastic_operate.job_view import JobStatus, SavedStatus, WorkerStatus, describe, look

NOW = 1000.0


def rows(*names: str, phase: Phase = Phase.RUNNING, heartbeat: int = 0, **row: object) -> list[Observation]:
    nodes = [seen(name, phase, **row) for name in names]  # type: ignore[arg-type]  # fields of a row
    return [Observation(node.row, node.serial, heartbeat, 1) for node in nodes]


def status(ledger: Ledger, *found: list[Observation]) -> JobStatus:
    return describe("job42", ledger, [row for some in found for row in some], NOW, 0.01)


def test_members_come_in_rank_order_and_then_the_nodes_that_wait() -> None:
    seen_by = status(live("ba"), rows("a", "b"), rows("c", phase=Phase.WAITING))
    assert [(node.host, node.ranks, node.phase, node.leads) for node in seen_by.nodes] == [
        ("host-b", (0, 1), "running", False),
        ("host-a", (2, 3), "running", True),
        ("host-c", None, "waiting", False),
    ]
    assert (seen_by.state, seen_by.round, seen_by.world_size) == ("running", 1, 4)


def test_a_member_without_a_row_and_one_that_has_not_begun() -> None:
    nodes = status(live("ab"), rows("b", phase=Phase.STOPPED, number=0)).nodes
    assert [node.phase for node in nodes] == ["silent", "starting"]


def test_ages_of_what_a_node_told_count_on_by_its_heartbeats() -> None:
    told = LocalWorkers(
        heartbeat=10,
        pids=(11, 12),
        steps=(7, None),
        seconds=(1.5, None),
        snapshot=SavedStep(6, 3.0),
        checkpoint=SavedStep(None, 30.0),
        store=0.01,
    )
    [node, silent] = status(live("ab"), rows("a", heartbeat=14, workers=told)).nodes
    assert node.workers == (WorkerStatus(0, 11, 7, 9.5), WorkerStatus(1, 12, None, None))
    assert (node.snapshot, node.checkpoint, node.store_s) == (SavedStatus(6, 11.0), SavedStatus(None, 38.0), 0.01)
    assert (silent.workers, silent.snapshot, silent.store_s) == ((), None, None)
    [older] = status(live("a"), rows("a", number=7, workers=told)).nodes
    assert older.workers == (), "they were of another round"
    [stopped] = status(live("a"), rows("a", phase=Phase.STOPPED, number=1, workers=told)).nodes
    assert (stopped.workers, stopped.snapshot) == ((), SavedStatus(6, 3.0))


def test_a_store_that_this_process_hosts_is_no_jobs() -> None:
    store = LocalBackend(MemoryStore())
    store.embedded = store.hosting = True
    with pytest.raises(RendezvousRefusedError, match="No agent of job"):
        look(store, "job")


def test_rows_of_another_run_are_not_of_the_job() -> None:
    other = [replace(row, row=replace(row.row, run="another")) for row in rows("c")]
    assert [node.host for node in status(live("a"), rows("a"), other).nodes] == ["host-a"]


@pytest.mark.parametrize(
    ("ledger", "state", "why"),
    [
        (start(), "forming", ""),
        (halted("a", HaltReason.NODE_LOST), "restarting", "it was"),
        (then(live("a"), Closed(success=True, why="done", exit_code=0), at=11.0), "succeeded", "done"),
        (then(live("a"), Closed(success=False, why="bad", exit_code=1), at=11.0), "failed", "bad"),
    ],
)
def test_the_state_of_a_job(ledger: Ledger, state: str, why: str) -> None:
    found = status(ledger)
    assert (found.state, found.why) == (state, why)


def test_spent_restarts_are_told_with_their_causes() -> None:
    failure = as_record(replace(incident("a"), message="ValueError: boom", exception="ValueError", step=12))
    spent = SpentRestart(failure=failure, age=4.0)
    ledger = with_counters(live("a"), restarts=1, failures=(spent,), losses={"id-b": HostLosses(2, 1.0)})
    found = status(ledger, rows("a", heartbeat=10))
    assert (found.restarts, found.max_restarts, found.host_losses) == (1, 3, {"id-b": 2})
    [shown] = found.failures
    assert (shown.exception, shown.step, shown.rank) == ("ValueError", 12, 0)


@pytest.mark.parametrize(("heartbeat", "age"), [(0, 10.0), (100, 200.0)], ids=["the newest entry's", "by heartbeats"])
def test_the_age_of_a_run_is_the_newest_entrys_or_counted_in_heartbeats(heartbeat: int, age: float) -> None:
    spent = SpentRestart(failure=Failure(round=1, rank=0, host="a", exception="E", exit_code=1, step=None), age=4.0)
    ledger = with_counters(live("a", at=10.0), failures=(spent,))
    assert ledger.settings.timing.beat_interval == 2.0
    found = status(ledger, rows("a", heartbeat=heartbeat))
    assert (found.age_s, found.failures[0].seconds_ago) == (age, age - 4.0)


def test_a_store_is_looked_at_and_left_as_it_is() -> None:
    store = job()
    before = store.roster()
    found = look(store, "job")
    assert found is not None
    assert {node.host for node in found.nodes} == {"host-a", "host-b"}
    assert store.roster() == before


def test_an_empty_store_has_no_job() -> None:
    assert look(LocalBackend(MemoryStore()), "job") is None


@pytest.mark.parametrize(
    ("sizes", "waiting", "why"),
    [
        ((2, 4), "c", "2 of 3 nodes train: --nnodes=2,4 has no size 3"),
        ((2, 4), "cd", ""),
        ((2, 4), "", ""),
        ((), "c", "the job has all 2 node(s) that it takes"),
    ],
)
def test_why_nodes_wait_and_how_many_spares_there_are(sizes: tuple[int, ...], waiting: str, why: str) -> None:
    plain = settings(2, 4 if sizes else 2)
    job_settings = replace(plain, agreement=replace(plain.agreement, sizes=sizes, spares=1))
    others = [rows(name, phase=Phase.WAITING) for name in waiting]
    found = status(live("ab", job_settings), rows("a", "b"), *others)
    assert (found.waiting, found.why_waiting, found.spares) == (len(waiting), why, 1)
