"""A question that nobody answers costs a thread, and no more than the time that it was given."""

from __future__ import annotations

import threading

import pytest

from elastic_core.threads import asked, bounded, prepare_later


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
