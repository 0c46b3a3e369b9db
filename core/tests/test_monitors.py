"""A round as its monitors see it: what they answer and are told of a hang."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.events import Event
from elastic_core.monitors import RunningRound
from elastic_core.protocol.entries import Stacks
from elastic_core.protocol.node_events import Hung, Locate
from elastic_core.protocol.roster import LocalStacks

WHERE = Locate(5, full=False, judge=False)
NOWHERE = LocalStacks(answers=5, places={})
HANG = Stacks(round=3, why="", hang=True)


@pytest.fixture
def posted() -> list[object]:
    return []


@pytest.fixture
def published() -> list[Event]:
    return []


@pytest.fixture
def round(posted: list[object], published: list[Event]) -> RunningRound:
    return RunningRound(3, "run", ["n1"], Path(), post=posted.append, publish=published.append)


def test_a_suspicion_is_posted_with_the_number_of_its_round(round: RunningRound, posted: list[object]) -> None:
    round.suspect_hang(300.0)
    assert posted == [Hung(3, 300.0)]


def test_without_a_monitor_no_place_is_known_and_a_hang_has_no_consequence(round: RunningRound) -> None:
    assert round.locate(WHERE) == NOWHERE
    round.tell_hang(HANG)


def test_the_first_monitor_that_wants_to_answers_where_the_ranks_are(round: RunningRound) -> None:
    found = LocalStacks(answers=5, places={"in f": (0,)})
    round.answer_where(lambda asked: found)
    round.answer_where(lambda asked: NOWHERE)
    assert round.locate(WHERE) == found


def test_only_hangs_of_the_round_itself_are_passed_on(round: RunningRound) -> None:
    told: list[Stacks] = []
    round.follow_hangs(told.append)
    for report in (Stacks(round=3, why=""), Stacks(round=2, why="", hang=True), HANG):
        round.tell_hang(report)
    assert told == [HANG]


def test_a_monitor_that_raises_is_reported_and_the_next_one_is_called(
    round: RunningRound, published: list[Event]
) -> None:
    def fail(_: object) -> LocalStacks:
        raise ValueError("no such rank")

    told: list[Stacks] = []
    round.answer_where(fail)
    round.follow_hangs(fail)
    round.follow_hangs(told.append)
    assert round.locate(WHERE) == NOWHERE
    round.tell_hang(HANG)
    assert told == [HANG]
    message = "a monitor raised, and is not called again in this round: ValueError: no such rank."
    assert [event.message for event in published] == [message] * 2, "once for each call that it registered"


def test_of_several_monitors_the_first_one_answers_for_snapshots(round: RunningRound) -> None:
    round.answer_snapshot(lambda held: (1, held["a"]))
    round.answer_snapshot(lambda held: (9, 9))
    assert round.find_snapshot({"a": 7}) == (1, 7)
