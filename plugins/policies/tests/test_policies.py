"""Each policy as a table: an incident, the failures before it, and the verdict."""

from __future__ import annotations

from typing import Any

import pytest
from failures import failure, history, incident, killed

from elastic_core.incidents import Action, Failure, Incident, IncidentKind, Verdict
from elastic_policies import backoff, budget, classification, composition, nan_loss, no_progress, quarantine
from elastic_policies.options import parse_policies
from elastic_policies.past import since_progress

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
    assert since_progress(past, incident(step=now)) == past[len(past) - left :]


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
    ],
)
def test_the_budget(text: str, past: list[Failure], now: Incident, expected: Action | None) -> None:
    assert action(budget.judge(now, history(*past), budget.parse(text))) is expected


@pytest.mark.parametrize(("now", "requeue"), [(incident(), False), (incident(message="ConnectionError: store"), True)])
def test_a_spent_budget_says_what_was_spent_and_whether_a_requeue_helps(now: Incident, requeue: bool) -> None:
    assert budget.judge(now, history(failure(9), failure(1)), budget.parse("2/1h")) == Verdict(
        Action.GIVE_UP, "all restarts of budget=2/1h are spent: 2 within 1h", requeue=requeue
    )


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
        (2, [failure(exception="TypeError", rank=1)], TYPE_ERROR, None),
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


def test_it_says_what_did_not_progress() -> None:
    steps = history(failure(9, step=5), failure(5, step=7), failure(3, step=6))
    verdict = no_progress.judge(incident(step=6), steps, 3)
    assert verdict is not None
    assert verdict.reason == "3 failures in a row without a step after 7 (no_progress=3)"
    verdict = no_progress.judge(incident(), history(failure(9), failure(5)), 3)
    assert verdict is not None
    assert verdict.reason == "ValueError on rank 0 3 times in a row (no_progress=3)"


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


@pytest.mark.parametrize("kind", [IncidentKind.PORT_TAKEN, IncidentKind.STORE_DIED, IncidentKind.NODE_LEFT])
def test_what_spends_no_restart_is_not_judged(kind: IncidentKind) -> None:
    assert judged("budget=0/1h", incident(kind=kind)) is None


def test_without_a_reason_all_abstain() -> None:
    assert judged("", incident()) is None
