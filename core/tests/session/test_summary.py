"""The report of the plugins on the answers to a question, as the leader has it made."""

from __future__ import annotations

from dataclasses import replace

from views import live, then

from elastic_core.protocol.entries import Question
from elastic_core.protocol.leader_entries import SumUp
from elastic_core.protocol.leader_view import Summary
from elastic_core.questions import AskedQuestion
from elastic_core.session.summary import Summaries

QUESTION = Question(round=1, name="load", value="7", asked_by="host-a")
WANTED = SumUp(3, AskedQuestion(round=1, name="load", value=7, asked_by="host-a"), ())


def test_a_report_is_of_the_question_that_was_summed_up() -> None:
    summaries, ledger = Summaries(lambda question, answers, before: "[1]"), then(live("ab"), QUESTION, at=2.0)
    assert summaries.newest(ledger) is None
    summaries.ask(WANTED, ledger)
    assert summaries.newest(replace(ledger, head_at=3.0)) == Summary(3, "[1]")


def test_a_question_of_another_history_with_the_same_index_has_no_report_yet() -> None:
    summaries, ledger = Summaries(lambda question, answers, before: "[1]"), then(live("ab"), QUESTION, at=2.0)
    summaries.ask(WANTED, ledger)
    other = then(live("ab"), replace(QUESTION), at=4.0)
    assert other.question_index == ledger.question_index
    assert summaries.newest(other) is None
