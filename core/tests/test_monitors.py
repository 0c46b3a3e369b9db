"""A round as its monitors see it: what they ask, answer and are told."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from elastic_core import monitors
from elastic_core.events import Event
from elastic_core.monitors import LAST_WORDS_MAX_CHARACTERS, RunningRound
from elastic_core.protocol.node_events import Asked


@pytest.fixture
def posted() -> list[object]:
    return []


@pytest.fixture
def published() -> list[Event]:
    return []


@pytest.fixture
def round(posted: list[object], published: list[Event]) -> RunningRound:
    return RunningRound(3, "run", ["n1"], Path(), post=posted.append, publish=published.append)


def test_a_question_is_posted_with_the_number_of_its_round(round: RunningRound, posted: list[object]) -> None:
    round.ask("load", {"since": 3})
    round.ask("load", None)
    assert posted == [Asked(3, "load", '{"since":3}'), Asked(3, "load", None)]


@pytest.mark.parametrize(
    ("name", "value"), [("", 1), ("n" * 33, 1), ("load", "x" * 256), ("load", object()), ("load", float("nan"))]
)
def test_a_question_that_does_not_fit_is_refused(
    round: RunningRound, posted: list[object], name: str, value: object
) -> None:
    with pytest.raises(ValueError, match=r"name|JSON"):
        round.ask(name, value)
    assert posted == []


def test_the_first_monitor_that_wants_to_answers(round: RunningRound) -> None:
    round.answer("load", lambda value: value + 1)
    round.answer("load", lambda value: 0)
    assert round.callbacks.find("load", "7") == "8"
    assert round.callbacks.find("another", "7") == "null"


@pytest.mark.parametrize("value", [object(), "x" * 50_000], ids=["no JSON", "too long"])
def test_an_answer_that_does_not_fit_is_left_out(round: RunningRound, published: list[Event], value: object) -> None:
    round.answer("load", lambda _: value)
    assert round.callbacks.find("load", "7") == "null"
    assert [event.name for event in published] == ["plugin_failed"]


def test_reports_are_passed_on_in_order_and_each_to_all_followers(round: RunningRound) -> None:
    told: list[object] = []
    release, done = threading.Event(), threading.Event()

    def first(report: object) -> None:
        assert release.wait(60.0)
        told.append(("first", report))

    round.follow_answers("load", first)
    round.follow_answers("load", lambda report: told.append(("second", report)))
    round.follow_answers("end", lambda report: done.set())
    for name, report in (("load", 1), ("another", 0), ("load", 2), ("end", 0)):
        round.callbacks.take(name, report)
    assert told == [], "the agent's loop does not wait for them"
    release.set()
    assert done.wait(60.0)
    assert told == [("first", 1), ("second", 1), ("first", 2), ("second", 2)]


def test_a_follower_that_takes_too_long_is_reported_and_the_next_one_is_called(
    round: RunningRound, published: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitors, "FOLLOW_SECONDS", 0.05)
    never, done = threading.Event(), threading.Event()
    round.follow_answers("load", lambda report: never.wait())
    round.follow_answers("load", lambda report: done.set())
    round.callbacks.take("load", 1)
    assert done.wait(60.0)
    never.set()
    assert [event.name for event in published] == ["plugin_failed"]


def test_a_monitor_that_raises_is_reported_and_the_next_one_is_called(
    round: RunningRound, published: list[Event]
) -> None:
    def fail(*_: object) -> str:
        raise ValueError("no such rank")

    done = threading.Event()
    round.answer("load", fail)
    round.before_stop(fail)
    round.follow_answers("load", fail)
    round.follow_answers("load", lambda report: done.set())
    assert round.callbacks.find("load", "7") == "null"
    assert round.callbacks.say_last() == ""
    round.callbacks.take("load", 1)
    assert done.wait(60.0)
    message = "a monitor raised, and is not called again in this round: ValueError: no such rank."
    assert [event.message for event in published] == [message] * 3, "once for each call that it registered"


def test_the_word_of_monitors_before_a_stop_is_limited_in_time_and_size(round: RunningRound) -> None:
    never = threading.Event()
    round.before_stop(lambda: "x" * 1000)
    round.before_stop(lambda: str(never.wait()), within=0.05)
    round.before_stop(lambda: 7)  # type: ignore[arg-type, return-value]  # a defect of the plugin
    round.before_stop(lambda: "rank 3 sleeps")
    assert round.callbacks.say_last() == f"{'x' * LAST_WORDS_MAX_CHARACTERS}; rank 3 sleeps"
    never.set()


def test_an_explanation_takes_the_place_of_another_one(round: RunningRound) -> None:
    round.explain("it hangs")
    round.explain("the network is slow")
    round.explain("it hangs for long", instead_of="it hangs")
    assert round.explanations == ["the network is slow", "it hangs for long"]
    round.explain("", instead_of="it hangs for long")
    assert round.explanations == ["the network is slow"]


def test_an_empty_note_takes_the_note_back(round: RunningRound) -> None:
    round.note("gpu", "cold")
    round.note("gpu", "")
    round.note("another", "")
    assert round.notes == {}


def test_of_several_monitors_the_first_one_answers_for_snapshots(round: RunningRound) -> None:
    round.answer_snapshot(lambda: (1, 7))
    round.answer_snapshot(lambda: (9, 9))
    assert round.callbacks.find_snapshot() == (1, 7)


def test_of_several_monitors_the_first_one_serves_the_packets_of_a_type(round: RunningRound) -> None:
    round.serve("keep", lambda packet, descriptors: f"{packet['name']} came with {descriptors}")
    round.serve("keep", lambda packet, descriptors: "")
    with pytest.raises(ValueError, match=r"^x came with \[7\]$"):
        round.callbacks.obey({"type": "keep", "name": "x"}, [7])
    assert not round.callbacks.obey({"type": "give"}, [])
