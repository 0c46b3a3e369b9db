"""A question without an answer costs a thread, and no more than the time that it was given."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import wait

import pytest

from elastic_core import threads
from elastic_core.threads import asked, bounded, keep_spare_thread, prepare_later


def test_a_question_that_nobody_answers_ends() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        bounded(never.wait, 0.01)
    never.set()


def test_an_answer_is_returned_and_an_error_raised() -> None:
    assert bounded(lambda: 7, 60) == 7
    with pytest.raises(KeyError):
        bounded({}.popitem, 60)


def test_a_late_answer_can_be_waited_for() -> None:
    let_go = threading.Event()
    answer = asked(let_go.wait)
    assert not answer.done()
    let_go.set()
    assert answer.result(60) is True


def test_the_result_of_a_call_is_passed_on_by_the_thread_that_made_it() -> None:
    found: list[tuple[int, str]] = []
    asked(lambda: 7, then=lambda it: found.append((it, threading.current_thread().name)), name="elastic-seven").result(
        60
    )
    assert found == [(7, "elastic-seven")]


def test_a_preparation_that_fails_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    names: list[str] = []

    def prepare() -> None:
        names.append(threading.current_thread().name)
        raise ImportError("no such module")

    prepare_later(0.0, prepare, name="elastic-prepare-test")
    for thread in threading.enumerate():
        if thread.name == "elastic-prepare-test":
            thread.join(30.0)
    assert names == ["elastic-prepare-test"]
    assert capfd.readouterr() == ("", "")


def test_where_no_thread_can_be_started_nothing_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    prepare_later(0.0, lambda: None, name="elastic-prepare-test")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set while the machine has no thread left."""
    none_left, start = threading.Event(), threading.Thread.start

    def starts(thread: threading.Thread) -> None:
        if none_left.is_set():
            raise RuntimeError("can't start new thread")
        start(thread)

    keep_spare_thread()
    monkeypatch.setattr(threading.Thread, "start", starts)
    yield none_left
    none_left.clear()


def test_a_thread_that_cannot_be_started_now_is_started_once_there_is_room(full: threading.Event) -> None:
    full.set()
    answers = [asked(lambda: 7), asked(lambda: 8)]
    assert not wait(answers, 0.2).done
    full.clear()
    assert [answer.result(5.0) for answer in answers] == [7, 8]
    assert asked(lambda: 9).result(5.0) == 9, "and the next ones as ever"


def test_where_there_is_no_room_for_long_the_starter_takes_its_place_and_the_next_one_fails(
    full: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "START_SECONDS", 0.2)
    full.set()
    assert asked(lambda: 7).result(5.0) == 7
    with pytest.raises(RuntimeError, match="can't start new thread"):
        asked(lambda: 8)
    full.clear()
    keep_spare_thread()
    full.set()
    assert asked(lambda: 9).result(5.0) == 9
