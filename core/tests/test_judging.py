from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from elastic_core.events import Event
from elastic_core.incidents import Action, History, Incident, IncidentKind, Verdict
from elastic_core.judging import judge
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
