"""A question that nobody answers costs a thread, and no more than the time that it was given."""

from __future__ import annotations

import threading

import pytest

from elastic_core.threads import asked, bounded


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
