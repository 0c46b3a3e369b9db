"""Rule L13: when a round makes room for waiting nodes, and what it weighs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_leader import NOW, body, running, view
from views import live, members, offer, seen, settings, start, then, with_counters

from elastic_core.protocol.entries import HaltReason, Round
from elastic_core.protocol.leader import decide
from elastic_core.protocol.leader_entries import LookAgain
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.limits import MAX_CHANGES
from elastic_core.protocol.resize import (
    MAX_WAIT_FACTOR,
    PRIOR_CHANGES,
    PRIOR_SECONDS,
    RESTART_SECONDS,
    SETTLE_SECONDS,
    ResizeCase,
    change_interval,
    seconds_until_resize,
)
from elastic_core.protocol.roster import LastCheckpoint

HOUR = 3600.0
LONGEST = MAX_WAIT_FACTOR * 60.0
CALM = ResizeCase(nodes=8, waiting=1, waited=20.0, round_age=HOUR, change_interval=24 * HOUR, resize_wait=60.0)
"""One node waits for a place beside eight, in a job that loses a node a day."""
SAVES = replace(CALM, at_stake=10.0, checkpoint_interval=600.0)
"""Its script saves every ten minutes, and did so ten seconds ago."""
UNKNOWN_INTERVAL = replace(SAVES, checkpoint_interval=0.0)


@pytest.mark.parametrize(
    ("case", "seconds"),
    [
        # Nothing is known of checkpoints
        pytest.param(CALM, 40.0, id="the first newcomer waits a minute for company"),
        pytest.param(replace(CALM, waited=60.0), 0.0, id="and not longer"),
        pytest.param(replace(CALM, resize_wait=0.0), 0.0, id="nor at all, where the user wants it so"),
        pytest.param(replace(CALM, round_age=60.0), 0.0, id="a young round has little to lose"),
        pytest.param(replace(CALM, round_age=60.1), 40.0, id="an older one may have"),
        pytest.param(
            replace(CALM, round_age=10.0, nodes=100, change_interval=600.0), 40.0, id="a large job has, when young"
        ),
        # 8 x (300 + 30): what the rule assumes to be lost, in a round that is as old
        pytest.param(
            replace(CALM, waited=60.0, change_interval=2641.0), 0.0, id="an hour of one node more is worth it"
        ),
        pytest.param(replace(CALM, waited=60.0, change_interval=2639.0), LONGEST - 60.0, id="less is not"),
        pytest.param(replace(CALM, waited=LONGEST, change_interval=60.0), 0.0, id="but for half an hour at most"),
        pytest.param(
            replace(CALM, waited=60.0, round_age=100.0, change_interval=1041.0), 0.0, id="no more is lost than was done"
        ),
        # Workers that save when they are told to stop
        pytest.param(replace(CALM, takes_notices=True), 0.0, id="nothing is lost"),
        pytest.param(replace(SAVES, at_stake=500.0, takes_notices=True), 0.0, id="whatever is not saved yet"),
        # Checkpoints are known
        pytest.param(SAVES, 0.0, id="right after a checkpoint"),
        pytest.param(replace(SAVES, at_stake=SETTLE_SECONDS - 0.5), 0.5, id="which other ranks may still be writing"),
        pytest.param(replace(SAVES, at_stake=SETTLE_SECONDS), 0.0, id="and that have written it"),
        pytest.param(replace(SAVES, at_stake=100.0), LONGEST - 20.0, id="later a resize costs more than it gains"),
        pytest.param(replace(SAVES, at_stake=100.0, waiting=8), 0.0, id="not one that doubles the job"),
        pytest.param(replace(SAVES, at_stake=100.0, waited=LONGEST), 0.0, id="it is put off for half an hour at most"),
        pytest.param(replace(SAVES, at_stake=700.0), LONGEST - 20.0, id="the next checkpoint is overdue"),
        pytest.param(
            replace(SAVES, nodes=1, checkpoint_interval=1.0, at_stake=2.6),
            LONGEST - 20.0,
            id="it comes sooner than that",
        ),
        pytest.param(
            replace(SAVES, at_stake=0.5, waited=LONGEST), 0.0, id="a node that has waited as long waits no more"
        ),
        pytest.param(
            replace(SAVES, at_stake=0.5, resize_wait=0.0), 0.0, id="where the user wants no wait there is none"
        ),
        # 1 node x 600 s to the next checkpoint against 8 x the work at stake since it settled: they are equal at 68.6 s
        pytest.param(replace(SAVES, at_stake=68.0), 0.0, id="just before it costs what it gains"),
        pytest.param(replace(SAVES, at_stake=69.0), LONGEST - 20.0, id="just after"),
        # Losses are frequent: waiting nodes get their places without a resize soon
        pytest.param(replace(SAVES, change_interval=200.0), LONGEST - 20.0, id="a loss will come first"),
        pytest.param(
            replace(SAVES, change_interval=200.0, pause=5.0, at_stake=2.0), 0.0, id="a short pause is worth it"
        ),
        # The interval is not known yet: only a loss or a failure is expected
        pytest.param(replace(UNKNOWN_INTERVAL, at_stake=100.0), 0.0, id="a day of one node more is worth it"),
        pytest.param(replace(UNKNOWN_INTERVAL, change_interval=303.0), LONGEST - 20.0, id="five minutes are not"),
        pytest.param(replace(UNKNOWN_INTERVAL, change_interval=305.0), 0.0, id="8 x (8 + 30) node-seconds are"),
        pytest.param(
            replace(UNKNOWN_INTERVAL, at_stake=4.0, change_interval=256.0), LONGEST - 20.0, id="as much is not"
        ),
        pytest.param(
            replace(UNKNOWN_INTERVAL, at_stake=2.0, change_interval=241.0), 0.0, id="just settled, it is free"
        ),
    ],
)
def test_a_resize_is_put_off_while_it_costs_more_than_it_gains(case: ResizeCase, seconds: float) -> None:
    assert seconds_until_resize(case) == pytest.approx(seconds)


def test_the_rate_of_changes_is_that_of_the_newest() -> None:
    assert change_interval((), 0.0) == PRIOR_SECONDS / PRIOR_CHANGES, "an hour, in a run that has just begun"
    assert change_interval((), 10 * HOUR) == (10 * HOUR + PRIOR_SECONDS) / PRIOR_CHANGES
    assert change_interval((5.0, 10.0), 3200.0) == 5000.0 / 2.5
    many = tuple(9000.0 + 100.0 * i for i in range(MAX_CHANGES))
    assert change_interval(many, 10_000.0) == (1000.0 + PRIOR_SECONDS) / (MAX_CHANGES + PRIOR_CHANGES)


# What the leader knows ------------------------------------------------------------------------------------------------


def job(*rows: dict[str, Any], nodes: int = 4, age: float = NOW, resize_wait: float = 60.0) -> Ledger:
    """A round of these members since 10 s; the run is ``age`` seconds old at NOW."""
    ledger = live("abcdefgh"[: len(rows)], settings(1, nodes, resize_wait=resize_wait))
    return replace(ledger, head=replace(ledger.head, age=age - (NOW - ledger.head_at)))


def decision(ledger: Ledger, *rows: dict[str, Any], now: float = NOW, arrived: tuple[float, ...] = (NOW,)) -> Any:
    """What the leader decides while nodes wait that came at these times."""
    names = "abcdefgh"
    came = [running(names[i], now=now, **row) for i, row in enumerate(rows)]
    late = [seen("mnop"[i], head=2, now=now, arrived=at, serial=20 + i) for i, at in enumerate(arrived)]
    return decide(view(ledger, *came, *late, now=now))


def saved(at: float, interval: float = 50.0) -> dict[str, Any]:
    return {"checkpoint": LastCheckpoint(at, interval, saved=True)}


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
        "host-m waits for a place: to stop the 3 node(s) of the round would lose their work since their last "
        "checkpoint, which is not known. It gets one with the next restart, else after 3 to 1743 s "
        "(--rdzv_conf resize_wait=60)"
    )
    assert resizes(decision(ledger, {}, {}, {}, arrived=(NOW - 60.0,)))
    assert resizes(decision(ledger, {}, {}, {}, arrived=(NOW - 60.0, NOW))), "the first of them counts"


@pytest.mark.parametrize(("waited", "told"), [(4.9, False), (5.0, True)])
def test_users_are_told_once_a_node_has_waited_for_a_moment(waited: float, told: bool) -> None:
    found = decision(job({}, {}, {}), {}, {}, {}, arrived=(NOW - waited,))
    assert bool(found.put_off) is told


def test_what_only_the_pause_between_resizes_puts_off_is_not_explained_by_work() -> None:
    ledger = replace(job({}, {}, {}), resized_at=NOW - 7.0, resize_cost=1.0)
    assert decision(ledger, {}, {}, {}, arrived=(NOW - 60.0,)) == LookAgain(NOW + 3.0)


def test_a_row_that_is_faster_than_the_ledger_tells_of_a_checkpoint_just_now() -> None:
    rows: tuple[dict[str, Any], ...] = (saved(NOW + 3.0), {})
    assert decision(job(*rows), *rows) == LookAgain(NOW + 2.0)


def test_the_wait_is_the_jobs_own() -> None:
    ledger = job({}, {}, resize_wait=12.0)
    assert decision(ledger, {}, {}, arrived=(NOW - 10.0,)).at == NOW + 2.0
    assert resizes(decision(job({}, {}, resize_wait=0.0), {}, {}))


def test_nobody_has_waited_longer_than_the_round_is_old() -> None:
    ledger = then(start(settings(1, 4)), Round(number=1, offer=offer("a"), members=members("abc")), at=NOW - 59.0)
    ledger = with_counters(ledger, changes=tuple(float(10 * i) for i in range(MAX_CHANGES)))
    assert decision(ledger, {}, {}, {}, arrived=(0.0,)).at == NOW + 1.0


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
        pytest.param((saved(NOW - 5), {}), True, id="the other node does not know"),
        pytest.param((saved(NOW - 5), saved(NOW - 5.5)), True, id="both have"),
        pytest.param((saved(NOW - 5), saved(NOW - 45)), False, id="the other part is not written yet"),
        pytest.param((watched(NOW - 5), watched(NOW - 5)), True, id="the round has just begun"),
        pytest.param((watched(NOW - 40), {}), True, id="no interval is known and losses are rare"),
    ],
)
def test_what_is_at_stake_is_the_work_since_the_scripts_checkpoint(
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


def test_only_as_many_count_as_get_a_place() -> None:
    """One more node is not worth the work of the four that train; four more are."""
    rows = (saved(NOW - 20),) * 4
    four = (NOW,) * 4
    assert not resizes(decision(job(*rows, nodes=5), *rows, arrived=four))
    assert resizes(decision(job(*rows, nodes=8), *rows, arrived=four))


def resized_slowly(ledger: Ledger) -> Ledger:
    return replace(ledger, resize_cost=60.0, resized_at=NOW - 2000.0)


def test_frequent_losses_and_a_slow_last_resize_speak_against_one() -> None:
    calm = job({}, {}, {}, {}, nodes=5, age=9_000.0)
    rough = with_counters(calm, changes=tuple(8_700.0 + 40 * i for i in range(MAX_CHANGES)))  # one in four minutes
    rows = (saved(8_997.0, 3000.0),) * 4
    assert resizes(decision(calm, *rows))
    assert resizes(decision(rough, *rows)), f"a pause of {RESTART_SECONDS:g} s is worth it"
    assert resizes(decision(resized_slowly(calm), *rows))
    assert not resizes(decision(resized_slowly(rough), *rows)), "one of 90 s is not"


def test_a_first_resize_costs_the_start_of_the_workers() -> None:
    """One node for (10,000 + 1,800) / 0.5 s, beside four that repeat 5,869.5 s: 30 s more are worth it."""
    rows = (saved(10_000.0 - 5_869.5 - SETTLE_SECONDS, 0.0),) * 4
    assert resizes(decision(job(*rows, nodes=5, age=10_000.0), *rows))


def test_a_node_is_put_off_for_half_an_hour_at_most() -> None:
    ledger, rows, at = job({}, {}, {}, {}, nodes=5, age=10_000.0), (saved(9_000.0),) * 4, NOW + LONGEST
    waits = decision(ledger, *rows, now=at - 0.5)
    assert waits.at == at
    assert "would lose 2800 s of their work. It gets one after the next checkpoint, with the next" in waits.put_off
    assert resizes(decision(ledger, *rows, now=at))
