"""Each policy as a table: an incident, the failures before it, and the verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from failures import failure, history, incident, killed

from elastic_core.incidents import PEER_LOST, Action, Failure, Incident, IncidentKind, Verdict
from elastic_policies import composition
from elastic_policies.composition import parse_policies
from elastic_policies.exclusions import Quarantine
from elastic_policies.hopeless import Classification, NanLoss, NoProgress, find_proof
from elastic_policies.past import newer_steps, since_checkpoint, since_progress
from elastic_policies.restarts import Backoff, Budget, Preemptions

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
    assert action(Budget.parse(text).judge(now, history(*past))) is expected


@pytest.mark.parametrize(("now", "requeue"), [(incident(), False), (incident(message="ConnectionError: store"), True)])
def test_a_spent_budget_says_what_was_spent_and_whether_a_requeue_helps(now: Incident, requeue: bool) -> None:
    assert Budget.parse("2/1h").judge(now, history(failure(9), failure(1))) == Verdict(
        Action.GIVE_UP, "all restarts of budget=2/1h are spent: 2 within 1h", requeue=requeue
    )


def test_a_spent_budget_that_steps_give_back_says_so() -> None:
    verdict = Budget.parse("1/100 steps").judge(incident(step=150), history(failure(9, step=100)))
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
    assert action(Preemptions.parse(text).judge(now, history(*past))) is expected


def test_a_job_that_was_preempted_too_often_is_worth_requeueing() -> None:
    past = history(killed(9, TERM), killed(5, TERM))
    assert Preemptions.parse("2/60m").judge(killed(number=TERM), past) == Verdict(
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
    verdict = Backoff.parse("1s..60s").judge(now, history(*map(failure, past)))
    assert (None if verdict is None else (verdict.action, verdict.delay)) == (delay and (Action.RESTART, delay))


def test_a_newer_step_ends_the_back_off() -> None:
    past, wait = history(failure(3, step=5), failure(1, step=5)), Backoff.parse("1s..60s")
    assert wait.judge(incident(step=6), past) is None
    verdict = wait.judge(incident(step=5), past)
    assert verdict is not None
    assert verdict.reason == "failure 3 in a row, so backoff=1s..1m waits 2s"


# Classification, no progress, NaN ------------------------------------------------------------------------------------

TYPE_ERROR = incident(message="TypeError: boom")


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
    assert action(Classification(most).judge(now, history(*past))) is expected


TIMEOUT = "TimeoutError: boom"
LOST = "RuntimeError: Connection closed by peer [10.0.0.7]:4242"
PEER: dict[str, Any] = {"exception": "RuntimeError", "digest": PEER_LOST}


@pytest.mark.parametrize(
    ("past", "now", "expected"),
    [
        # Without a step: rounds of one length in which nothing moved.
        ([], incident(), 0),
        ([failure()], incident(), 0),
        ([failure()] * 2, incident(), 3),
        ([failure(), failure(rank=1, host="b")], incident(rank=7), 3),
        ([failure(), failure(exception="KeyError")], incident(), 0),
        ([failure(), failure(place="train.py:7 in f")], incident(), 0),
        ([failure(), failure(digest="0")], incident(), 0),
        ([failure(), failure(new_checkpoint=True)], incident(), 0),
        ([failure(), failure(moved=True)], incident(), 0),
        ([failure(after=3000.0), failure(after=2500.0)], incident(after=2400.0), 3),
        ([failure(after=3000.0), failure(after=2500.0)], incident(after=600.0), 0),
        ([failure(9e5), failure(4e5)], incident(), 3),
        ([killed(9)] * 9, killed(), 0),
        ([failure(exception="TimeoutError")] * 9, incident(message=TIMEOUT), 0),
        ([failure(**PEER)] * 9, incident(message=LOST, follows_peer=True), 0),
        ([failure(**PEER, after=1800.0)] * 4, incident(message=LOST, follows_peer=True, after=1790.0), 5),
        ([failure(**PEER, after=1800.0)] * 4, incident(message=LOST, follows_peer=True, after=900.0), 0),
        ([failure(exception="TimeoutError", after=1800.0)] * 9, incident(message=TIMEOUT, after=1800.0), 0),
        ([failure(exception="", exit_code=3)] * 2, incident(message="", exit_code=3), 3),
        ([failure(exception="", exit_code=3)] * 2, incident(message="", exit_code=4), 0),
        # With steps: the round that progressed does not count.
        ([failure(step=5)] * 2, incident(step=5), 0),
        ([failure(step=5)] * 3, incident(step=5), 3),
        ([failure(step=5), failure(step=4), failure(step=3)], incident(step=5), 3),
        ([failure(step=5), failure(step=4), failure(step=3)], incident(step=6), 0),
        ([failure(step=5), failure(step=4), failure(exception="KeyError", step=3)], incident(step=5), 0),
        ([failure(step=5), killed(9, step=5), killed(9, step=5)], killed(step=5), 0),
        ([failure(step=5), failure(step=5), killed(9, TERM), failure(step=5)], incident(step=5), 3),
        ([failure(step=5), failure(step=5), killed(9, TERM, step=9), failure(step=5)], incident(step=5), 0),
        ([failure(step=5)] * 3, killed(number=TERM, step=5), 0),
        # Steps that another node has printed are known one round later.
        ([failure(step=5)] * 3, incident(), 0),
        ([failure(step=5)] * 4, incident(), 3),
        # After a failure of another kind the program does not get as far as to a step.
        ([killed(9, step=5), failure(), failure()], incident(), 3),
        # What comes from outside the program ends it at one step only.
        ([failure(exception="TimeoutError", step=900)] * 4, incident(step=900, message=TIMEOUT), 5),
        ([failure(exception="TimeoutError", step=900)] * 3, incident(step=900, message=TIMEOUT), 0),
        (
            [failure(**PEER, step=step) for step in (29, 29, 29, 29)],
            incident(step=29, message=LOST, follows_peer=True),
            5,
        ),
        (
            [failure(**PEER, step=step) for step in (29, 28, 29, 29)],
            incident(step=29, message=LOST, follows_peer=True),
            0,
        ),
        (
            [failure(**PEER, step=step) for step in (900, 897, 899, 893)],
            incident(step=900, message=LOST, follows_peer=True),
            5,
        ),
        ([killed(9, step=900, host=host) for host in "abcd"], killed(step=900), 5),
    ],
)
def test_equal_failures_without_progress_end_the_job(past: list[Failure], now: Incident, expected: int) -> None:
    proof = find_proof(now, history(*past), 3, 5, limit_given=False)
    assert (0 if proof is None else proof[0]) == expected


@pytest.mark.parametrize(
    ("past", "now", "expected"),
    [
        ([failure()] * 3, incident(), 0),
        ([failure()] * 4, incident(), 5),
        ([failure()] * 3 + [failure(moved=True)], incident(), 0),
        ([failure(after=600.0)] * 4, incident(after=60.0), 0),
        ([failure(step=5)] * 3, incident(step=5), 0),
        ([failure(step=5)] * 4, incident(step=5), 5),
        ([failure(step=50, new_checkpoint=True), *[failure(step=50)] * 3], incident(step=50), 5),
        ([failure(step=step) for step in (190, 150, 170, 130)], incident(step=160), 0),
        ([failure(step=step) for step in (100, 200, 300, 400)], incident(step=500), 0),
        ([failure(step=5)] * 4, incident(), 0),
        ([failure(step=5)] * 5, incident(), 5),
    ],
)
def test_where_a_limit_was_given_five_rounds_must_end_at_one_step(
    past: list[Failure], now: Incident, expected: int
) -> None:
    proof = find_proof(now, history(*past), 3, 5, limit_given=True)
    assert (0 if proof is None else proof[0]) == expected


@pytest.mark.parametrize(
    ("text", "max_restarts", "rounds"),
    [("3/5", 3, 3), ("3/5", 1000, 5), ("3/5", None, 5), ("3", 1000, 3), ("6", 3, 6), ("2/4", 0, 4)],
)
def test_how_many_rounds_it_takes_depends_on_what_was_given(text: str, max_restarts: int | None, rounds: int) -> None:
    def judge(before: int) -> Verdict | None:
        past = history(*[failure()] * before, max_restarts=max_restarts)
        return NoProgress.parse(text).judge(incident(), past)

    assert judge(rounds - 2) is None
    assert action(judge(rounds - 1)) is Action.GIVE_UP


@pytest.mark.parametrize("step", [None, 5])
def test_a_newer_checkpoint_is_progress(step: int | None) -> None:
    past, numbers = [failure(step=step)] * 3, NoProgress.parse("3/5")
    assert action(numbers.judge(incident(step=step), history(*past))) is Action.GIVE_UP
    assert numbers.judge(incident(step=step), history(*past, new_checkpoint=True)) is None
    past[2] = failure(step=step, new_checkpoint=True)
    assert numbers.judge(incident(step=step), history(*past)) is None


def test_it_says_what_was_alike_and_what_did_not_progress() -> None:
    def reason(now: Incident, *past: Failure) -> str:
        verdict = NoProgress.parse("3/5").judge(now, history(*past))
        assert verdict is not None
        assert not verdict.requeue
        return verdict.reason

    at = incident(where="train.py:41 in step: x = table[key]", message="KeyError: boom")
    known = failure(exception="KeyError", place="train.py:41 in step")
    what = "the same KeyError at train.py:41 in step in 3 rounds in a row"
    assert reason(at, known, known) == f"{what}, and no step or checkpoint (no_progress=3)"
    known = replace(known, step=7)
    assert reason(replace(at, step=7), *[known] * 3) == f"{what}, and no newer step or checkpoint (no_progress=3)"
    elsewhere = failure(exception="", exit_code=1, host="b")
    what = "a worker exited with code 1 in 3 rounds in a row on 2 hosts"
    assert reason(incident(message=""), elsewhere, elsewhere) == f"{what}, and no step or checkpoint (no_progress=3)"
    lost = [failure(**PEER, step=step) for step in (900, 899, 900, 900)]
    what = "a peer was lost in 5 rounds in a row"
    assert (
        reason(incident(step=900, message=LOST, follows_peer=True), *lost)
        == f"{what}, each at step 899 to 900 (no_progress=5)"
    )


@pytest.mark.parametrize(
    ("message", "expected"),
    [("NanLoss: step 7", Action.GIVE_UP), ("elastic_core.NanLoss: x", Action.GIVE_UP), ("ValueError: nan", None)],
)
def test_a_loss_that_is_not_a_number_ends_the_job(message: str, expected: Action | None) -> None:
    assert action(NanLoss().judge(incident(message=message), history())) is expected


ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
BAD_GPU: dict[str, Any] = {"exception": "RuntimeError", "digest": incident(message=ECC).digest}
SLOW_DOWN = "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the GetObject operation"
SLOW: dict[str, Any] = {"exception": "botocore.exceptions.ClientError", "digest": incident(message=SLOW_DOWN).digest}


# Quarantine ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("past", "now", "expected"),
    [
        ([], killed(), None),
        ([killed(9)], killed(), None),
        ([killed(9), killed(5)], killed(), Action.EXCLUDE_HOST),
        ([killed(3601), killed(5)], killed(), None),
        ([killed(9, host="b"), killed(5)], killed(), None),
        ([killed(9, host="b"), killed(7), killed(5)], killed(), Action.RESTART),
        ([killed(9, number=7, host="b"), killed(7), killed(5)], killed(), Action.EXCLUDE_HOST),
        ([failure(9, **BAD_GPU), failure(5, **BAD_GPU)], incident(message=ECC), Action.EXCLUDE_HOST),
        ([failure(9, **SLOW), failure(5, **SLOW)], incident(message=SLOW_DOWN), None),
        ([failure(9), failure(5)], incident(), None),
        ([failure(9), killed(7), killed(5)], killed(), Action.EXCLUDE_HOST),
        ([killed(9), killed(7), killed(5)], killed(), None),
        ([killed(9)] * 5, killed(), Action.EXCLUDE_HOST),
        ([killed(9)] * 2, incident(kind=IncidentKind.START_FAILED, exit_code=None, message="", rank=None), "start"),
        ([failure(9, exception="", exit_code=3)] * 2, incident(message="", exit_code=3), None),
    ],
)
def test_a_host_that_fails_first_again_and_again_is_left_out(past: list[Failure], now: Incident, expected: Any) -> None:
    found = action(Quarantine.parse("3/1h:30m").judge(now, history(*past)))
    assert found is (Action.EXCLUDE_HOST if expected == "start" else expected)


def test_it_says_how_often_and_for_how_long() -> None:
    verdict = Quarantine.parse("3/1h:30m").judge(killed(), history(killed(9), killed(5)))
    reason = "a failed first 3 times within 1h (quarantine=3/1h:30m)"
    assert verdict == Verdict(Action.EXCLUDE_HOST, reason, exclude_for=1800.0)


def test_a_host_with_a_long_name_is_found_again() -> None:
    long = "node-" + 60 * "x"
    kept = long[:34] + "…"  # as the ledger keeps it, in 40 bytes
    past = history(killed(9, host=kept), killed(5, host=kept))
    assert Quarantine.parse("3/1h:30m").judge(killed(host=long), past) is not None


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
    past = [killed(9, step=5)] * 5
    assert action(judged("", killed(step=5), *past)) is Action.EXCLUDE_HOST
    assert action(judged("", killed(step=5), *past[1:])) is Action.GIVE_UP
    assert action(judged("quarantine=off", killed(step=5), *past)) is Action.GIVE_UP


def test_why_a_host_is_not_quarantined_is_said_beside_the_verdict_of_others() -> None:
    past = [killed(9, host="b"), killed(7), killed(5)]
    verdict = judged("budget=9/1h", killed(), *past)
    why = "a is not left out: b failed alike within 1h (quarantine=3/1h:30m)"
    assert verdict == Verdict(Action.RESTART, f"restart 4 of budget=9/1h; {why}")
    assert judged("", killed(), *past) == Verdict(Action.RESTART, why)


@pytest.mark.parametrize("kind", [IncidentKind.PORT_TAKEN, IncidentKind.STORE_DIED, IncidentKind.NODE_LOST])
def test_an_incident_that_spends_no_restart_is_not_judged(kind: IncidentKind) -> None:
    assert judged("budget=0/1h", incident(kind=kind)) is None


def test_without_a_reason_all_abstain() -> None:
    assert judged("", incident()) is None
