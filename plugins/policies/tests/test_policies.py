"""Each policy as a table: an incident, the failures before it, and the verdict."""

from __future__ import annotations

from typing import Any

import pytest
from failures import failure, history, incident, killed

from elastic_core.incidents import Action, Failure, Incident, IncidentKind, Verdict
from elastic_policies import (
    backoff,
    budget,
    classification,
    composition,
    nan_loss,
    no_progress,
    preemptions,
    quarantine,
)
from elastic_policies.options import parse_policies
from elastic_policies.past import newer_steps, since_checkpoint, since_progress

TERM = 15


def action(verdict: Verdict | None) -> Action | None:
    return None if verdict is None else verdict.action


# Progress ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "now", "left"),
    [
        ([], 5, 0),
        ([5], 5, 1),
        ([5], 6, 0),
        ([5, 3, 4], 5, 3),
        ([5, 7, 6], 7, 2),
        ([None, None], None, 2),
        ([5, None, 4], None, 3),
        ([None, 5], 6, 0),
    ],
)
def test_failures_since_a_newer_step_was_reached(steps: list[int | None], now: int | None, left: int) -> None:
    past = [failure(step=step) for step in steps]
    assert since_progress(history(*past), incident(step=now)) == past[len(past) - left :]


@pytest.mark.parametrize(
    ("checkpoints", "now", "left"),
    [
        ([False, False], False, 2),
        ([False, True, False], False, 2),
        ([True, False], False, 2),  # the round that saved one failed all the same
        ([False, False], True, 0),
    ],
)
def test_failures_since_a_newer_checkpoint_was_saved(checkpoints: list[bool], now: bool, left: int) -> None:
    past = [failure(step=5, new_checkpoint=one) for one in checkpoints]
    known = history(*past, new_checkpoint=now)
    assert since_progress(known, incident(step=5)) == past[len(past) - left :]
    assert since_checkpoint(known) == past[len(past) - left :]


def test_how_many_steps_each_round_has_added() -> None:
    past = history(*(failure(step=step) for step in (None, 100, None, 90, 130)))
    assert newer_steps(past, incident(step=135)) == [0, 0, 0, 0, 30, 5]


# Budget --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "past", "now", "expected"),
    [
        ("2/1h", [], incident(), Action.RESTART),
        ("2/1h", [failure(3599)], incident(), Action.RESTART),
        ("2/1h", [failure(3600), failure(1)], incident(), Action.GIVE_UP),
        ("2/1h", [failure(3601), failure(1)], incident(), Action.RESTART),
        ("0/1h", [], incident(), Action.GIVE_UP),
        ("2/1h", [failure(9), killed(5, TERM), killed(1, TERM)], incident(), Action.RESTART),
        ("0/1h", [], killed(number=TERM), None),
        ("2/progress", [failure(9, step=5), failure(9, step=5)], incident(step=5), Action.GIVE_UP),
        ("2/progress", [failure(9, step=5), failure(9, step=5)], incident(step=6), Action.RESTART),
        ("2/progress", [failure(9, step=5), failure(9, step=7)], incident(step=6), Action.RESTART),
        ("2/progress", [failure(9e5), failure(9)], incident(), Action.GIVE_UP),
        ("1/progress", [failure(9, step=5, new_checkpoint=True)], incident(step=5), Action.GIVE_UP),
        ("1/checkpoint", [failure(9, step=5), failure(5, step=9)], incident(step=12), Action.GIVE_UP),
        ("2/checkpoint", [failure(9), failure(5, new_checkpoint=True)], incident(), Action.RESTART),
        ("1/100steps", [failure(9, step=0)], incident(step=99), Action.GIVE_UP),
        ("1/100steps", [failure(9, step=0)], incident(step=100), Action.RESTART),
        ("2/100steps", [failure(9, step=0), failure(8, step=40)], incident(step=80), Action.GIVE_UP),
        ("2/100steps", [failure(9, step=0), failure(8, step=60)], incident(step=120), Action.RESTART),
        ("2/100steps", [failure(9, step=0), failure(8, step=900)], incident(step=900), Action.RESTART),
        ("1/100steps", [failure(9, step=0), failure(8, step=900)], incident(step=950), Action.GIVE_UP),
        ("1/100steps", [failure(9, step=0), killed(8, TERM, step=0)], incident(step=100), Action.RESTART),
        ("2/100steps", [failure(9), failure(8)], incident(), Action.GIVE_UP),
    ],
)
def test_the_budget(text: str, past: list[Failure], now: Incident, expected: Action | None) -> None:
    assert action(budget.judge(now, history(*past), budget.parse(text))) is expected


@pytest.mark.parametrize(("now", "requeue"), [(incident(), False), (incident(message="ConnectionError: store"), True)])
def test_a_spent_budget_says_what_was_spent_and_whether_a_requeue_helps(now: Incident, requeue: bool) -> None:
    assert budget.judge(now, history(failure(9), failure(1)), budget.parse("2/1h")) == Verdict(
        Action.GIVE_UP, "all restarts of budget=2/1h are spent: 2 within 1h", requeue=requeue
    )


def test_a_spent_budget_that_steps_give_back_says_so() -> None:
    verdict = budget.judge(incident(step=150), history(failure(9, step=100)), budget.parse("1/100 steps"))
    assert verdict is not None
    assert verdict.reason == "all restarts of budget=1/100steps are spent: 1 and not given back by 100 steps each"


# Preemptions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "past", "now", "expected"),
    [
        ("2/1h", [], killed(number=TERM), Action.RESTART),
        ("2/1h", [killed(9, TERM)], killed(number=TERM), Action.RESTART),
        ("2/1h", [killed(9, TERM), killed(5, TERM)], killed(number=TERM), Action.GIVE_UP),
        ("2/1h", [killed(3601, TERM), killed(5, TERM)], killed(number=TERM), Action.RESTART),
        ("2/1h", [failure(9), killed(7), killed(5, TERM)], killed(number=TERM), Action.RESTART),
        ("0/1h", [killed(5, TERM)], incident(), None),
        ("0/1h", [], killed(number=TERM), Action.GIVE_UP),
    ],
)
def test_the_budget_of_preemptions(text: str, past: list[Failure], now: Incident, expected: Action | None) -> None:
    assert action(preemptions.judge(now, history(*past), preemptions.parse(text))) is expected


def test_a_job_that_was_preempted_too_often_is_worth_requeueing() -> None:
    past = history(killed(9, TERM), killed(5, TERM))
    assert preemptions.judge(killed(number=TERM), past, preemptions.parse("2/60m")) == Verdict(
        Action.GIVE_UP, "workers were preempted 3 times within 1h (preemptions=2/1h)", requeue=True
    )
    verdict = judged("preemptions=2/1h,budget=0/1h,backoff=1s..9s", killed(number=TERM), killed(5, TERM))
    assert verdict is not None
    assert verdict.reason == "preemption 2 of preemptions=2/1h; failure 2 in a row, so backoff=1s..9s waits 1s"


# Back-off ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("past", "now", "delay"),
    [
        ([], incident(), None),
        ([1], incident(), 1.0),
        ([3, 1], incident(), 2.0),
        ([6, 3, 1], incident(), 4.0),
        ([9, 8, 7, 6, 5, 4, 3, 2, 1], incident(), 60.0),
        ([1200, 599], incident(), 1.0),
        ([601], incident(), None),
    ],
)
def test_the_delay_doubles_with_each_failure_in_a_row(past: list[float], now: Incident, delay: float | None) -> None:
    verdict = backoff.judge(now, history(*map(failure, past)), backoff.parse("1s..60s"))
    assert (None if verdict is None else (verdict.action, verdict.delay)) == (delay and (Action.RESTART, delay))


def test_a_newer_step_ends_the_back_off() -> None:
    past, wait = history(failure(3, step=5), failure(1, step=5)), backoff.parse("1s..60s")
    assert backoff.judge(incident(step=6), past, wait) is None
    verdict = backoff.judge(incident(step=5), past, wait)
    assert verdict is not None
    assert verdict.reason == "failure 3 in a row, so backoff=1s..1m waits 2s"


# Classification, no progress, NaN ------------------------------------------------------------------------------------

TYPE_ERROR = incident(message="TypeError: unhashable")


@pytest.mark.parametrize(
    ("most", "past", "now", "expected"),
    [
        (1, [], TYPE_ERROR, Action.GIVE_UP),
        (1, [], incident(), None),
        (1, [], killed(), None),
        (2, [], TYPE_ERROR, None),
        (2, [failure(exception="TypeError")], TYPE_ERROR, Action.GIVE_UP),
        (2, [failure(exception="TypeError", rank=1)], TYPE_ERROR, Action.GIVE_UP),
        (2, [failure(exception="KeyError")], TYPE_ERROR, None),
    ],
)
def test_an_error_of_the_program_is_not_repeated(
    most: int, past: list[Failure], now: Incident, expected: Action | None
) -> None:
    assert action(classification.judge(now, history(*past), most)) is expected


@pytest.mark.parametrize(
    ("past", "now", "expected"),
    [
        ([], incident(), None),
        ([failure(9)], incident(), None),
        ([failure(9), failure(5)], incident(), Action.GIVE_UP),
        ([failure(9), failure(5, exception="KeyError")], incident(), None),
        ([failure(9), failure(5, rank=1)], incident(), None),
        ([failure(1200), failure(601)], incident(), None),
        ([failure(1200), failure(600)], incident(), Action.GIVE_UP),
        ([killed(9), killed(5)], killed(), None),
        ([failure(9, exception="TimeoutError")] * 2, incident(message="TimeoutError: store"), None),
        ([failure(9, step=5), failure(5, step=4)], incident(step=5), Action.GIVE_UP),
        ([failure(7000, step=5), failure(3500, step=4)], incident(step=5), Action.GIVE_UP),
        ([failure(9e5, step=5), failure(4e5, step=4)], incident(step=5), None),
        ([failure(9, step=5, exception="TimeoutError")] * 2, incident(step=5), None),
        ([failure(9, step=5)] * 2, incident(step=5, message="TimeoutError: store"), None),
        ([failure(9, step=5), failure(5, step=4)], incident(step=6), None),
        ([failure(9, step=5), killed(5, step=5)], incident(step=5), Action.GIVE_UP),
        ([failure(9, step=5), killed(5, TERM, step=5)], incident(step=5), None),
        ([failure(9, step=5), failure(5, step=5)], killed(number=TERM, step=5), None),
    ],
)
def test_three_failures_without_progress_end_the_job(
    past: list[Failure], now: Incident, expected: Action | None
) -> None:
    assert action(no_progress.judge(now, history(*past), 3)) is expected


@pytest.mark.parametrize("step", [None, 5])
def test_a_newer_checkpoint_is_progress(step: int | None) -> None:
    past = [failure(9, step=step), failure(5, step=step)]
    assert action(no_progress.judge(incident(step=step), history(*past), 3)) is Action.GIVE_UP
    assert no_progress.judge(incident(step=step), history(*past, new_checkpoint=True), 3) is None
    past[1] = failure(5, step=step, new_checkpoint=True)
    assert no_progress.judge(incident(step=step), history(*past), 3) is None


def test_it_says_what_did_not_progress() -> None:
    steps = history(failure(9, step=5), failure(5, step=7), failure(3, step=6))
    verdict = no_progress.judge(incident(step=6), steps, 3)
    assert verdict is not None
    assert verdict.reason == "3 failures in a row without a step after 7 or a newer checkpoint (no_progress=3)"
    verdict = no_progress.judge(incident(), history(failure(9), failure(5)), 3)
    assert verdict is not None
    assert verdict.reason == "ValueError on rank 0 3 times in a row without a newer checkpoint (no_progress=3)"


@pytest.mark.parametrize(
    ("message", "expected"),
    [("NanLoss: step 7", Action.GIVE_UP), ("elastic_core.NanLoss: x", Action.GIVE_UP), ("ValueError: nan", None)],
)
def test_a_loss_that_is_not_a_number_ends_the_job(message: str, expected: Action | None) -> None:
    assert action(nan_loss.judge(incident(message=message), history(), "stop")) is expected


# Quarantine ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("past", "now", "expected"),
    [
        ([], killed(), None),
        ([killed(9)], killed(), None),
        ([killed(9), killed(5)], killed(), Action.EXCLUDE_HOST),
        ([killed(3601), killed(5)], killed(), None),
        ([killed(9, host="b"), killed(5)], killed(), None),
        ([failure(9), failure(5)], incident(), None),
        ([failure(9), killed(7), killed(5)], killed(), Action.EXCLUDE_HOST),
        ([killed(9), killed(7), killed(5)], killed(), None),
        ([killed(9)] * 5, killed(), Action.EXCLUDE_HOST),
        ([killed(9)] * 2, incident(kind=IncidentKind.START_FAILED, exit_code=None, message="", rank=None), "start"),
        ([failure(9, exception="", exit_code=3)] * 2, incident(message="", exit_code=3), None),
    ],
)
def test_a_host_that_fails_first_again_and_again_is_left_out(past: list[Failure], now: Incident, expected: Any) -> None:
    found = action(quarantine.judge(now, history(*past), quarantine.parse("3/1h:30m")))
    assert found is (Action.EXCLUDE_HOST if expected == "start" else expected)


def test_it_says_how_often_and_for_how_long() -> None:
    verdict = quarantine.judge(killed(), history(killed(9), killed(5)), quarantine.parse("3/1h:30m"))
    reason = "a failed first 3 times within 1h (quarantine=3/1h:30m)"
    assert verdict == Verdict(Action.EXCLUDE_HOST, reason, exclude_for=1800.0)


def test_a_host_with_a_long_name_is_found_again() -> None:
    long = "node-" + 60 * "x"
    kept = long[:34] + "…"  # as the ledger keeps it, in 40 bytes
    past = history(killed(9, host=kept), killed(5, host=kept))
    assert quarantine.judge(killed(host=long), past, quarantine.parse("3/1h:30m")) is not None


# All together --------------------------------------------------------------------------------------------------------


def judged(text: str, now: Incident, *past: Failure) -> Verdict | None:
    return composition.judge(now, history(*past), parse_policies(text))


def test_the_strictest_counts_with_the_longest_delay_and_says_whose_it_is() -> None:
    verdict = judged("budget=9/1h,backoff=1s..60s", incident(rank=3), failure(5))
    assert verdict == Verdict(
        Action.RESTART, "restart 2 of budget=9/1h; failure 2 in a row, so backoff=1s..1m waits 1s", delay=1.0
    )
    verdict = judged("budget=9/1h,backoff=1s..60s", incident(), failure(9), failure(5))
    assert verdict is not None
    assert (verdict.action, verdict.policy) == (Action.GIVE_UP, "no_progress")


def test_a_failure_that_quarantines_its_host_is_not_held_against_the_program() -> None:
    past = [killed(9, step=5), killed(5, step=5)]
    verdict = judged("", killed(step=5), *past)
    assert action(verdict) is Action.EXCLUDE_HOST
    assert action(judged("", killed(step=5, host="b"), *past, killed(1, step=5))) is Action.GIVE_UP
    assert action(judged("quarantine=off", killed(step=5), *past)) is Action.GIVE_UP


@pytest.mark.parametrize("kind", [IncidentKind.PORT_TAKEN, IncidentKind.STORE_DIED, IncidentKind.NODE_LOST])
def test_what_spends_no_restart_is_not_judged(kind: IncidentKind) -> None:
    assert judged("budget=0/1h", incident(kind=kind)) is None


def test_without_a_reason_all_abstain() -> None:
    assert judged("", incident()) is None
