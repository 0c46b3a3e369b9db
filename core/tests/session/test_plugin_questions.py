"""The report of the plugins on the answers to a question, as the leader has it made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from session_parts import ignore
from views import live, then

from elastic_core.incidents import Action, History, Incident, Verdict
from elastic_core.protocol.entries import Question
from elastic_core.protocol.leader_entries import SumUp
from elastic_core.questions import AskedQuestion
from elastic_core.session.leader_driver import PluginQuestions
from elastic_core.session.runtime import RUNTIME
from elastic_core.session.state import SessionCalls

QUESTION = Question(round=1, name="load", value="7", asked_by="host-a")
WANTED = SumUp(AskedQuestion(round=1, name="load", value=7, asked_by="host-a"), ())


def give_up(incident: Incident, history: History) -> Verdict:
    return Verdict(Action.GIVE_UP, "")


def questions_of(sum_up: Callable[..., str]) -> PluginQuestions:
    return PluginQuestions(RUNTIME, SessionCalls(ignore, ignore, give_up, ignore, sum_up=sum_up))


def test_a_report_is_of_the_question_that_was_summed_up() -> None:
    questions, ledger = questions_of(lambda question, answers, before: "[1]"), then(live("ab"), QUESTION, at=2.0)
    assert questions.report(ledger) is None
    questions.sum_up(WANTED, ledger)
    assert questions.report(replace(ledger, head_at=3.0)) == "[1]"


def test_a_question_of_another_history_with_the_same_index_has_no_report_yet() -> None:
    questions, ledger = questions_of(lambda question, answers, before: "[1]"), then(live("ab"), QUESTION, at=2.0)
    questions.sum_up(WANTED, ledger)
    other = then(live("ab"), replace(QUESTION), at=4.0)
    assert other.questions.index == ledger.questions.index
    assert questions.report(other) is None
