from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from elastic_core.events import Event
from elastic_core.incidents import Action, History, Incident, IncidentKind, Verdict
from elastic_core.judging import LONGEST_REASON, judge
from elastic_core.observers import Implementation

PATIENCE = 60.0
INCIDENT = Incident(kind=IncidentKind.WORKER_FAILED, round=1, node_id="n", host="h", exit_code=1)
HISTORY = History(restarts=0, max_restarts=3, rounds_without_progress=0)
RESTART, EXCLUDE, GIVE_UP = (Verdict(action, action.name) for action in Action)


def policy(plugin: str, function: Callable[[Incident], object]) -> Implementation:
    return Implementation(plugin, "elastic_judge_failure", function, ("incident",))


def says(verdict: Verdict | None) -> Implementation:
    return policy(verdict.reason if verdict else "nothing", lambda _: verdict)


def asked(*policies: Implementation, timeout: float = PATIENCE) -> tuple[Verdict, list[str]]:
    """The verdict, and the warnings on the way to it."""
    told: list[Event] = []
    verdict = judge(policies, INCIDENT, HISTORY, timeout=timeout, report=told.append)
    return verdict, [event.message for event in told if "traceback" not in event.name]


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ([RESTART], RESTART),
        ([RESTART, None, GIVE_UP, EXCLUDE], GIVE_UP),
        ([EXCLUDE, RESTART], EXCLUDE),
        ([Verdict(Action.GIVE_UP, "first"), GIVE_UP], Verdict(Action.GIVE_UP, "first")),
    ],
)
def test_the_strictest_of_all_verdicts_wins(given: list[Verdict | None], verdict: Verdict) -> None:
    assert asked(*map(says, given)) == (verdict, [])


def broken(_: Incident) -> Verdict:
    raise KeyError("rank")


def test_one_that_raises_abstains() -> None:
    assert asked(policy("broken", broken), says(RESTART)) == (
        RESTART,
        ["The plugin 'broken' raised in elastic_judge_failure: KeyError: 'rank'. It abstains."],
    )


def test_one_that_answers_nonsense_abstains() -> None:
    assert asked(policy("eager", lambda _: True), says(RESTART)) == (
        RESTART,
        [
            "The plugin 'eager' raised in elastic_judge_failure: "
            "TypeError: True is neither a Verdict nor None. It abstains."
        ],
    )


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ((Action.GIVE_UP, 5), "TypeError: the verdict's reason is 5, which is not a str"),
        ((Action.GIVE_UP, None), "TypeError: the verdict's reason is None, which is not a str"),
        ((Action.GIVE_UP, "x", "yes"), "TypeError: the verdict's requeue is 'yes', which is not a bool"),
        (("give_up", "x"), "TypeError: the verdict's action is 'give_up', which is not an Action"),
        ((True, "x"), "TypeError: the verdict's action is True, which is not an Action"),
        ((7, "x"), "ValueError: 7 is not a valid Action"),
    ],
)
def test_a_verdict_that_cannot_be_followed_is_an_abstention(fields: tuple[Any, ...], fault: str) -> None:
    assert asked(policy("careless", lambda _: Verdict(*fields)), says(RESTART)) == (
        RESTART,
        [f"The plugin 'careless' raised in elastic_judge_failure: {fault}. It abstains."],
    )


def test_an_action_may_be_a_number_and_means_what_it_says() -> None:
    verdict, _ = asked(policy("careless", lambda _: Verdict(2, "enough")), says(RESTART))  # type: ignore[arg-type]
    assert verdict.action is Action.GIVE_UP


def test_a_reason_has_its_limits() -> None:
    verdict, warnings = asked(says(Verdict(Action.GIVE_UP, "why " * 100_000)))
    assert (len(verdict.reason), warnings) == (LONGEST_REASON, [])


@pytest.fixture
def never() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_one_that_hangs_abstains_and_the_others_are_heard(never: threading.Event) -> None:
    hanging = policy("hanging", lambda _: never.wait(PATIENCE))
    assert asked(hanging, says(GIVE_UP), timeout=1) == (
        GIVE_UP,
        ["The plugin 'hanging' gave no verdict within 1 s. It abstains."],
    )


def test_no_verdict_at_all_is_a_defect() -> None:
    with pytest.raises(ValueError, match="no failure policy"):
        asked(says(None))
