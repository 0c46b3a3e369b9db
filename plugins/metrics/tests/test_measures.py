"""From events to numbers, as a table: each row is a story and what is known after it."""

from __future__ import annotations

import pytest

from elastic_core.events import Event, Field, Level
from elastic_metrics.prometheus import BUCKETS, Measures, Recoveries, after


def event(at: float, name: str, **fields: Field) -> Event:
    return Event(name, "", Level.INFO, fields, at=at)


def started(at: float, number: int, cause: str | None = None, **fields: Field) -> Event:
    facts: dict[str, Field] = {"nodes": 2, "world_size": 4, "restarts": 0, "member": True, **fields}
    return event(at, "round_started", round=number, cause=cause, **facts)


def running(at: float, number: int) -> Event:
    return event(at, "workers_started", round=number, workers=2, took_s=0.1)


def told(*story: Event) -> Measures:
    measures = Measures()
    for happened in story:
        measures = after(measures, happened)
    return measures


FIRST = (started(0, 1), running(1, 1))
FAILED = (*FIRST, event(10, "worker_failed"))
HALTED = (*FIRST, event(10, "round_halted"))


@pytest.mark.parametrize(
    ("story", "known"),
    [
        pytest.param((), {"round": 0, "world_size": 0, "workers_running": 0}, id="nothing has happened"),
        pytest.param(FIRST, {"round": 1, "nodes": 2, "world_size": 4, "workers_running": 2}, id="the first round"),
        pytest.param(FAILED, {"worker_failures": 1, "workers_running": 0, "trouble_at": 10}, id="a worker failed"),
        pytest.param(
            (*FAILED, started(11, 2, "failure", restarts=1)),
            {"round": 2, "restarts_spent": 1, "workers_running": 0, "trouble_at": 10},
            id="workers are starting again",
        ),
        pytest.param(
            (*FIRST, started(11, 2, "failure", restarts=1), started(12, 3, "node_lost", restarts=0)),
            {"restarts_spent": 0},
            id="a restart is given back",
        ),
        pytest.param((*FIRST, event(9, "workers_done")), {"workers_running": 0, "trouble_at": None}, id="done"),
        pytest.param(
            (*FAILED, event(11, "job_closed")), {"workers_running": 0, "trouble_at": None}, id="the job is over"
        ),
        pytest.param(
            (*FIRST, started(11, 2, "resize", member=False)),
            {"round": 2, "placed": False, "workers_running": 0, "trouble_at": None},
            id="left out of the new round",
        ),
        pytest.param((event(5, "round_halted"),), {"trouble_at": None}, id="trouble of others, before we have a slot"),
        pytest.param((event(5, "round_started"),), {"round": 0, "placed": True}, id="an agent that says less"),
    ],
)
def test_the_measures_after_a_story(story: tuple[Event, ...], known: dict[str, object]) -> None:
    measures = told(*story)
    assert {name: getattr(measures, name) for name in known} == known


@pytest.mark.parametrize(
    ("story", "cause", "seconds"),
    [
        pytest.param((*FAILED, started(11, 2, "failure"), running(13, 2)), "failure", 3.0, id="our worker failed"),
        pytest.param((*FIRST, started(11, 2, "failure"), running(13, 2)), "failure", 2.0, id="another node's worker"),
        pytest.param((*HALTED, started(16, 2, "node_lost"), running(17, 2)), "node_lost", 7.0, id="a node was lost"),
        pytest.param((*HALTED, started(10.5, 2, "resize"), running(11, 2)), "resize", 1.0, id="a node joined"),
        pytest.param(
            (*FAILED, event(12, "round_halted"), started(13, 2, "failure"), running(14, 2)),
            "failure",
            4.0,
            id="the first sign counts",
        ),
        pytest.param(
            (*FAILED, started(11, 2, "failure"), event(12, "worker_failed"), started(13, 3, "unseen"), running(15, 3)),
            "unseen",
            5.0,
            id="a round that did not start is part of it",
        ),
        pytest.param(
            (*FIRST, event(8, "workers_done"), event(10, "round_halted"), started(11, 2, "failure"), running(13, 2)),
            "failure",
            3.0,
            id="we had finished",
        ),
        pytest.param(
            (started(0, 1), event(1, "worker_failed"), started(2, 2, "store"), running(4, 2)),
            "store",
            3.0,
            id="the first round did not start",
        ),
        pytest.param(
            (*FIRST, event(10, "fenced"), started(70, 2, "node_left"), running(71, 2)), "node_left", 61.0, id="fenced"
        ),
        pytest.param((*FIRST, started(11, 2), running(13, 2)), "unknown", 2.0, id="an agent that does not say why"),
        pytest.param(
            (*FIRST, started(11, 2, "quarantine"), running(13, 2)), "quarantine", 2.0, id="a cause of the future"
        ),
    ],
)
def test_a_recovery_lasts_from_the_first_trouble_until_the_workers_run(
    story: tuple[Event, ...], cause: str, seconds: float
) -> None:
    recovered = {name: each for name, each in told(*story).recoveries.items() if each.total}
    assert {name: (sum(each.counts), each.total) for name, each in recovered.items()} == {cause: (1, seconds)}


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(FIRST, id="the first start"),
        pytest.param(FAILED, id="not recovered yet"),
        pytest.param((event(5, "round_halted"), started(6, 4, "resize"), running(7, 4)), id="a newcomer's first start"),
        pytest.param(
            (*HALTED, started(11, 2, "node_left", member=False), started(99, 3, "resize"), running(100, 3)),
            id="back after having been left out",
        ),
    ],
)
def test_other_restarts_are_no_recovery(story: tuple[Event, ...]) -> None:
    assert set(told(*story).recoveries.values()) == {Recoveries()}


def test_restarts_are_counted_by_cause_and_the_first_round_is_none() -> None:
    story = (*FIRST, started(2, 2, "failure"), started(3, 3, "failure"), started(4, 4, "node_lost"))
    assert {cause: count for cause, count in told(*story).restarts.items() if count} == {"failure": 2, "node_lost": 1}


def test_every_event_is_counted_by_name_and_level() -> None:
    measures = told(event(1, "joining"), event(2, "joining"), Event("joining", "", Level.ERROR))
    assert measures.events == {("joining", "INFO"): 2, ("joining", "ERROR"): 1}


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, 0), (BUCKETS[0], 0), (0.3, 2), (BUCKETS[-1], len(BUCKETS) - 1), (1e9, len(BUCKETS))]
)
def test_a_bucket_holds_what_took_as_long_as_its_bound_or_less(seconds: float, bucket: int) -> None:
    counts = Recoveries().plus(seconds).counts
    assert [index for index, count in enumerate(counts) if count] == [bucket]
