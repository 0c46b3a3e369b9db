"""Rule L13: when a round makes room for waiting nodes, and what it weighs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_leader import NOW, body, running, view
from views import incident, live, members, offer, seen, settings, start, then, with_counters

from elastic_core.protocol.counters import as_record
from elastic_core.protocol.entries import Counters, HaltReason, HostLosses, Round, SpentRestart
from elastic_core.protocol.leader import decide
from elastic_core.protocol.leader_entries import LookAgain
from elastic_core.protocol.ledger import LastResize, Ledger
from elastic_core.protocol.planned_stop import (
    FRESH_SECONDS,
    MAX_WAIT_FACTOR,
    SETTLE_SECONDS,
    ResizeCase,
    restarts_often,
    seconds_until_resize,
)
from elastic_core.protocol.roster import LastCheckpoint

HOUR = 3600.0
LONGEST = MAX_WAIT_FACTOR * 60.0
UNKNOWN = ResizeCase(waited=20.0, round_age=HOUR, resize_wait=60.0)
"""A node waits for a place in a round whose checkpoints no node notices."""
ROUGH = replace(UNKNOWN, restarts_often=True)
SAVED = replace(UNKNOWN, at_stake=5.0)
"""The script saved a checkpoint five seconds ago."""


@pytest.mark.parametrize(
    ("case", "seconds"),
    [
        pytest.param(UNKNOWN, 40.0, id="the first newcomer waits a minute for company"),
        pytest.param(replace(UNKNOWN, waited=60.0), 0.0, id="and not longer"),
        pytest.param(replace(UNKNOWN, resize_wait=0.0), 0.0, id="nor at all, where the user wants it so"),
        pytest.param(replace(UNKNOWN, round_age=60.0), 0.0, id="a young round has little to lose"),
        pytest.param(replace(UNKNOWN, round_age=60.1), 40.0, id="an older one may have"),
        pytest.param(ROUGH, LONGEST - 20.0, id="where rounds end often it waits for the next restart"),
        pytest.param(replace(ROUGH, round_age=60.0), 0.0, id="except where the round is young"),
        pytest.param(replace(ROUGH, waited=LONGEST), 0.0, id="and for half an hour at most"),
        pytest.param(replace(ROUGH, takes_notices=True), 0.0, id="workers that save when told to stop lose nothing"),
        pytest.param(replace(SAVED, at_stake=500.0, takes_notices=True), 0.0, id="whatever is not saved yet"),
        pytest.param(SAVED, 0.0, id="right after a checkpoint"),
        pytest.param(replace(SAVED, restarts_often=True), 0.0, id="however often rounds end"),
        pytest.param(replace(SAVED, at_stake=SETTLE_SECONDS - 0.5), 0.5, id="which other ranks may still be writing"),
        pytest.param(replace(SAVED, at_stake=SETTLE_SECONDS), 0.0, id="and that have written it"),
        pytest.param(replace(SAVED, at_stake=FRESH_SECONDS), 0.0, id="a checkpoint that is still fresh"),
        pytest.param(replace(SAVED, at_stake=FRESH_SECONDS + 0.1), LONGEST - 20.0, id="later it waits for the next"),
        pytest.param(replace(SAVED, at_stake=500.0, waited=LONGEST), 0.0, id="for half an hour at most"),
        pytest.param(replace(SAVED, at_stake=0.5, waited=LONGEST), 0.0, id="a node that has waited as long is done"),
        pytest.param(replace(SAVED, at_stake=0.5, resize_wait=0.0), 0.0, id="no wait is wanted"),
    ],
)
def test_a_resize_is_put_off_until_it_loses_little(case: ResizeCase, seconds: float) -> None:
    assert seconds_until_resize(case) == pytest.approx(seconds)


def test_rounds_end_often_after_two_losses_or_failures_within_an_hour() -> None:
    lost, failed = HostLosses(1, 9_000.0), SpentRestart(failure=as_record(incident("a")), age=9_500.0)
    assert not restarts_often(Counters(losses={"a": lost}), 10_000.0)
    assert restarts_often(Counters(losses={"a": lost, "b": lost}), 10_000.0)
    assert restarts_often(Counters(losses={"a": lost}, failures=(failed,)), 10_000.0)
    assert restarts_often(Counters(failures=(failed, failed)), 10_000.0)
    assert not restarts_often(Counters(failures=(failed, failed)), 9_500.0 + HOUR), "they were long ago"


# What the leader knows ------------------------------------------------------------------------------------------------


def job(*rows: dict[str, Any], nodes: int = 4, age: float = NOW, resize_wait: float = 60.0) -> Ledger:
    """A round of these members since 10 s; the run is ``age`` seconds old at NOW."""
    ledger = live("abcdefgh"[: len(rows)], settings(1, nodes, resize_wait=resize_wait))
    return replace(ledger, head=replace(ledger.head, age=age - (NOW - ledger.head_at)))


def decision(ledger: Ledger, *rows: dict[str, Any], now: float = NOW, arrived: tuple[float, ...] = (NOW,)) -> Any:
    """Return the leader's decision while nodes wait that came at these times."""
    names = "abcdefgh"
    came = [running(names[i], now=now, **row) for i, row in enumerate(rows)]
    late = [seen("mnop"[i], head=2, now=now, arrived=at, serial=20 + i) for i, at in enumerate(arrived)]
    return decide(view(ledger, *came, *late, now=now))


def saved(at: float) -> dict[str, Any]:
    return {"checkpoint": LastCheckpoint(at, saved=True)}


def watched(at: float) -> dict[str, Any]:
    return {"checkpoint": LastCheckpoint(at)}


def resizes(found: Any) -> bool:
    return not isinstance(found, LookAgain) and body(found).reason is HaltReason.RESIZE


def test_a_node_waits_for_others_while_no_checkpoint_is_known() -> None:
    ledger = job({}, {}, {})
    early = decision(ledger, {}, {}, {}, arrived=(NOW - 4.0,))
    assert early == LookAgain(NOW + 6.0), "a heartbeat may be missing then"
    late = decision(ledger, {}, {}, {}, arrived=(NOW - 57.0,))
    assert (late.at, late.waiting) == (NOW + 3.0, "")
    assert late.put_off == (
        "host-m joins in about 3 s, or with the next restart: to stop the workers of 3 node(s) now would lose the work "
        "since the last checkpoint. Scripts that call elastic.should_checkpoint() make room at once (--rdzv_conf "
        "resize_wait=60)"
    )
    assert resizes(decision(ledger, {}, {}, {}, arrived=(NOW - 60.0,)))
    assert resizes(decision(ledger, {}, {}, {}, arrived=(NOW - 60.0, NOW))), "the first of them counts"


@pytest.mark.parametrize(("waited", "told"), [(4.9, False), (5.0, True)])
def test_users_are_told_once_a_node_has_waited_for_a_moment(waited: float, told: bool) -> None:
    found = decision(job({}, {}, {}), {}, {}, {}, arrived=(NOW - waited,))
    assert bool(found.put_off) is told


def test_a_resize_that_only_the_pause_puts_off_is_not_explained_by_work() -> None:
    ledger = replace(job({}, {}, {}), last_resize=LastResize(NOW - 7.0, 1.0))
    assert decision(ledger, {}, {}, {}, arrived=(NOW - 60.0,)) == LookAgain(NOW + 3.0)


def test_a_row_that_is_faster_than_the_ledger_tells_of_a_checkpoint_just_now() -> None:
    rows: tuple[dict[str, Any], ...] = (saved(NOW + 3.0), {})
    assert decision(job(*rows), *rows) == LookAgain(NOW + 2.0)


def test_the_wait_is_the_jobs_own() -> None:
    ledger = job({}, {}, resize_wait=12.0)
    assert decision(ledger, {}, {}, arrived=(NOW - 10.0,)).at == NOW + 2.0
    assert resizes(decision(job({}, {}, resize_wait=0.0), {}, {}))


def test_no_node_has_waited_longer_than_the_round_is_old() -> None:
    ledger = then(start(settings(1, 4)), Round(number=1, offer=offer("a"), members=members("abc")), at=NOW - 61.0)
    rough = with_counters(ledger, losses={name: HostLosses(1, 0.0) for name in "xy"})
    assert resizes(decision(ledger, {}, {}, {}, arrived=(0.0,)))
    waits = decision(rough, {}, {}, {}, arrived=(0.0,))
    assert "in 29 min at most" in waits.put_off, "half an hour from the start of the round"


def test_workers_that_take_notices_are_stopped_at_once() -> None:
    takes = {"takes_notices": True}
    plan = body(decision(job(takes, takes), takes, takes))
    assert (type(plan).__name__, plan.reason) == ("Plan", HaltReason.RESIZE)
    assert decision(job(takes, {}), takes, {}) == LookAgain(NOW + 6.0), "one node of two would lose its work"


@pytest.mark.parametrize(
    ("rows", "resized"),
    [
        pytest.param((saved(NOW - 5), watched(10.0)), True, id="rank 0 has just saved"),
        pytest.param((saved(NOW - 40), watched(10.0)), False, id="some time ago"),
        pytest.param((saved(NOW - 5), {}), True, id="the other node does not notice any"),
        pytest.param((saved(NOW - 5), saved(NOW - 5.5)), True, id="both have"),
        pytest.param((saved(NOW - 5), saved(NOW - 45)), False, id="the other part is not written yet"),
        pytest.param((watched(NOW - 5), watched(NOW - 5)), True, id="the round has just begun"),
        pytest.param((watched(NOW - 40), {}), False, id="it has not saved yet"),
    ],
)
def test_the_work_at_stake_is_that_since_the_scripts_checkpoint(
    rows: tuple[dict[str, Any], ...], resized: bool
) -> None:
    assert resizes(decision(job(*rows), *rows)) is resized


def test_a_checkpoint_of_the_round_before_does_not_count() -> None:
    old = {**saved(NOW - 5), "number": 0}
    assert decision(job({}, {}), old, {}) == LookAgain(NOW + 6.0)


def test_a_leader_of_any_term_tells_the_age_of_a_checkpoint_by_the_age_of_the_run() -> None:
    rows = saved(9_995.0), saved(9_996.0)
    assert resizes(decision(job(*rows, age=10_000.0), *rows))
    assert not resizes(decision(job(*rows, age=10_040.0), *rows))


def test_a_node_waits_for_the_next_restart_where_rounds_end_often() -> None:
    ledger = job({}, {}, age=10_000.0)
    rows: tuple[dict[str, Any], ...] = ({}, {})
    rough = with_counters(ledger, losses={name: HostLosses(1, 9_000.0) for name in "xy"})
    assert resizes(decision(ledger, *rows, arrived=(NOW - 60.0,)))
    found = decision(rough, *rows, arrived=(NOW - 60.0,))
    assert "host-m joins with the next restart, in 29 min at most: " in found.put_off


def test_a_node_is_put_off_for_half_an_hour_at_most() -> None:
    ledger, rows, at = job({}, {}, {}, {}, nodes=5, age=10_000.0), (saved(9_000.0),) * 4, NOW + LONGEST
    waits = decision(ledger, *rows, now=at - 0.5)
    assert waits.at == at
    assert "at the next checkpoint or restart, in 0.5 s at most: to stop" in waits.put_off
    assert "would lose 2800 s of work." in waits.put_off
    assert resizes(decision(ledger, *rows, now=at))
