"""Questions to all nodes of a round, as the leader takes them and as a node asks and answers (rule L14)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_leader import NOW, body, running, view
from test_node import Node, halt, running as running_node, sealed
from test_repair import resumed
from views import halted, incident, info, live, offer, seen, then

from elastic_core.protocol.entries import Answers, Halt, HaltReason, Leader, Question, Round
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.leader import decide
from elastic_core.protocol.leader_entries import Append, LookAgain, SumUp
from elastic_core.protocol.leader_view import LeaderView
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.limits import MAX_ASKS, MAX_QUESTION_NAMES
from elastic_core.protocol.node import row_of
from elastic_core.protocol.node_events import (
    AnswerFound,
    AnswerRead,
    Asked,
    FindAnswer,
    HistoryReplaced,
    NodeEvent,
    Stop,
    WorkerFailed,
    WorkersDone,
    WorkersGone,
)
from elastic_core.protocol.questions import (
    ANSWER_WAIT_SECONDS,
    QUESTION_PAUSE_SECONDS,
    SUMMARY_LOOK_SECONDS,
    ask_or_report,
    describe_others,
)
from elastic_core.protocol.roster import Answer, Ask, NodeRow, Phase
from elastic_core.questions import NAME_MAX_CHARACTERS, VALUE_MAX_BYTES, AskedQuestion, NodeAnswer
from elastic_core.rendezvous.backend import Link

QUESTION = Question(round=1, name="load", value="7", asked_by="host-a")
ASK = Ask("load", "7", 0)
ASKED = AskedQuestion(round=1, name="load", value=7, asked_by="host-a")


def asks(name: str, what: Ask = ASK, **more: Any) -> NodeView:
    return running(name, asks=(what,), **more)


def request(what: Ask = ASK) -> NodeView:
    row = NodeRow(info=replace(info("x"), node_id="request", host="shell"), asks=(what,))
    return replace(seen("x"), row=row, serial=9)


def asked(*, at: float = NOW - 1) -> Ledger:
    return then(live("ab"), QUESTION, at=at)


def answered(report: str = "1") -> Ledger:
    """The question at 3, the report at 4."""
    return then(asked(at=NOW - 2), Answers(round=1, name="load", question=3, report=report), at=NOW - 1)


def with_reports(reports: dict[str, tuple[int, str]]) -> Ledger:
    ledger = answered()
    return replace(ledger, questions=replace(ledger.questions, reports=reports))


def answer(name: str, text: str, *, to: int = 3, **more: Any) -> NodeView:
    return running(name, answer=Answer(to, text), **more)


def due(known: LeaderView) -> Append | SumUp | float | None:
    """What is due in the round, or when something may be due."""
    assert known.ledger.round is not None
    return ask_or_report(known, known.ledger.round, ())


class TestQuestion:
    def test_a_node_that_asks_has_all_asked(self) -> None:
        assert body(decide(view(live("ab"), asks("a"), running("b")))) == QUESTION

    def test_a_command_that_asks_has_all_asked(self) -> None:
        found = body(decide(view(live("ab"), running("a"), running("b"), request())))
        assert found == replace(QUESTION, asked_by="shell")

    def test_several_that_ask_the_same_are_one_question_with_the_value_of_the_first(self) -> None:
        nodes = asks("a"), asks("b", Ask("load", "8", 0)), request(Ask("other", "1", 0))
        assert body(decide(view(live("ab"), *nodes))) == replace(QUESTION, asked_by="host-a, host-b")

    @pytest.mark.parametrize(
        "nodes",
        [
            pytest.param([running("a"), running("b")], id="none asks"),
            pytest.param([seen("a", Phase.FINISHED, head=2, asks=(Ask("load", "7", 0),)), running("b")], id="finished"),
            pytest.param([asks("a", number=7), running("b")], id="of another round"),
            pytest.param([asks("a", Ask("", "7", 0)), running("b")], id="no name"),
            pytest.param([asks("a", Ask("n" * (NAME_MAX_CHARACTERS + 1), "7", 0)), running("b")], id="a long name"),
            pytest.param([asks("a", Ask("load", "7" * (VALUE_MAX_BYTES + 1), 0)), running("b")], id="a long value"),
            pytest.param([asks("a", Ask("load", "7", 9)), running("b")], id="of another history"),
        ],
    )
    def test_no_question_is_asked_without_need(self, nodes: list[NodeView]) -> None:
        assert isinstance(decide(view(live("ab"), *nodes)), LookAgain)

    @pytest.mark.parametrize(("name", "value"), [("n", "7" * VALUE_MAX_BYTES), ("n" * NAME_MAX_CHARACTERS, "")])
    def test_the_shortest_name_and_the_longest_texts_are_taken(self, name: str, value: str) -> None:
        found = body(decide(view(live("ab"), asks("a", Ask(name, value, 0)), running("b"))))
        assert (found.name, found.value) == (name, value)

    def test_the_first_question_waits_for_no_pause(self) -> None:
        """Whatever the leader's clock shows."""
        assert isinstance(due(view(live("ab", at=0.1), asks("a"), running("b"), now=0.2)), Append)

    def test_no_question_is_asked_before_all_members_have_begun(self) -> None:
        ledger = live("ab", at=NOW - 0.5)
        assert isinstance(decide(view(ledger, asks("a"), running("b", head=1, arrived=NOW))), LookAgain)

    def test_a_failure_comes_first(self) -> None:
        found = decide(view(live("ab"), asks("a", incident=incident("a")), running("b")))
        assert not isinstance(getattr(found, "body", None), Question)

    @pytest.mark.parametrize(("known", "open_"), [(0, False), (3, False), (4, True)])
    def test_an_answer_serves_all_who_had_not_read_it(self, known: int, open_: bool) -> None:
        what = Ask("load", "7", known)
        of_a_node = view(answered(), asks("a", what, head=4), running("b", head=4))
        of_a_command = view(answered(), running("a", head=4), running("b", head=4), request(what))
        assert [isinstance(decide(known), Append) for known in (of_a_node, of_a_command)] == [open_, open_]

    def test_another_question_is_not_served_by_it(self) -> None:
        nodes = asks("a", Ask("other", "7", 0), head=4), running("b", head=4)
        assert body(decide(view(answered(), *nodes))) == replace(QUESTION, name="other")

    def test_the_name_that_was_answered_the_longest_ago_comes_first(self) -> None:
        nodes = asks("a", Ask("load", "7", 4), head=4), asks("b", Ask("other", "7", 0), head=4)
        assert body(decide(view(answered(), *nodes))) == Question(round=1, name="other", value="7", asked_by="host-b")

    def test_one_who_asks_again_at_once_waits_for_the_pause_between_questions(self) -> None:
        nodes = asks("a", Ask("load", "7", 4), head=4), running("b", head=4)
        found = decide(replace(view(answered(), *nodes), now=NOW - 1.9))
        assert isinstance(found, LookAgain)
        assert found.at == NOW - 2 + QUESTION_PAUSE_SECONDS
        assert isinstance(decide(replace(view(answered(), *nodes), now=found.at)), Append)

    def test_of_the_questions_in_a_row_only_the_first_are_taken(self) -> None:
        known = with_reports({f"n{number}": (4, "1") for number in range(MAX_ASKS)})
        stranger = request()
        flood = tuple(Ask(f"n{number}", "7", 3) for number in range(MAX_ASKS + 1))
        stranger = replace(stranger, row=replace(stranger.row, asks=flood))
        assert isinstance(decide(view(known, running("a", head=4), running("b", head=4), stranger)), LookAgain)

    @pytest.mark.parametrize(
        ("names", "of_a_member", "of_a_command"),
        [(31, True, True), (MAX_QUESTION_NAMES // 2, True, False), (MAX_QUESTION_NAMES, False, False)],
    )
    def test_a_round_has_so_many_names_of_questions(self, names: int, of_a_member: bool, of_a_command: bool) -> None:
        ledger = with_reports({f"n{number}": (4, "1") for number in range(names)})
        members = running("a", head=4), running("b", head=4)
        found = decide(view(ledger, asks("a", head=4), members[1])), decide(view(ledger, *members, request()))
        assert [isinstance(each, Append) for each in found] == [of_a_member, of_a_command]
        known = decide(view(ledger, *members, request(Ask("n3", "7", 4))))
        assert body(known).name == "n3", "a name that was answered before may be asked again"

    def test_in_the_next_round_a_node_that_has_read_no_answer_may_ask(self) -> None:
        ledger = then(then(answered(), halt(), at=NOW - 1), Round(number=2, offer=offer("a", 2), same_as=1), at=NOW - 1)
        index = ledger.head.index
        nodes = asks("a", number=2, head=index), running("b", number=2, head=index)
        assert body(decide(view(ledger, *nodes))) == replace(QUESTION, round=2)


class TestAnswers:
    def test_the_leader_waits_until_all_have_answered(self) -> None:
        found = decide(view(asked(), answer("a", "1"), running("b")))
        assert isinstance(found, LookAgain)
        assert found.at == NOW - 1 + ANSWER_WAIT_SECONDS

    def test_all_answers_are_summed_up_in_rank_order(self) -> None:
        found = decide(view(asked(), answer("b", "2"), answer("a", "[1]")))
        a = NodeAnswer(node="host-a", ranks=range(2), value=[1])
        b = NodeAnswer(node="host-b", ranks=range(2, 4), value=2)
        assert found == SumUp(ASKED, (a, b))

    def test_of_a_node_that_does_not_answer_in_time_is_said_so(self) -> None:
        known = view(asked(at=NOW - ANSWER_WAIT_SECONDS), answer("a", "no JSON"), running("b"))
        found = decide(known)
        assert isinstance(found, SumUp)
        assert [(one.node, one.value, one.silent) for one in found.answers] == [
            ("host-a", None, False),
            ("host-b", None, True),
        ]
        without_a_row = due(view(asked(at=NOW - ANSWER_WAIT_SECONDS), answer("a", "1")))
        assert isinstance(without_a_row, SumUp)
        assert (without_a_row.answers[1].node, without_a_row.answers[1].silent) == ("b", True)

    def test_a_lost_member_is_not_waited_for(self) -> None:
        assert isinstance(due(view(asked(), answer("a", "1"), running("b", changed=0.0))), SumUp)

    @pytest.mark.parametrize("answered", [None, Answer(3, "2")])
    def test_a_node_that_has_finished_need_not_answer(self, answered: Answer | None) -> None:
        found = decide(view(asked(), answer("a", "1"), seen("b", Phase.FINISHED, head=2, answer=answered)))
        assert isinstance(found, SumUp)
        assert found.answers[1] == NodeAnswer(node="host-b", ranks=range(2, 4), finished=True)

    def test_a_node_over_a_foreign_handler_cannot_be_asked(self) -> None:
        peer = running("b")
        peer = replace(peer, row=replace(peer.row, info=replace(peer.row.info, host_id="")))
        found = decide(view(asked(), answer("a", "1"), peer))
        assert isinstance(found, SumUp)
        assert [one.node for one in found.answers] == ["host-a"]

    @pytest.mark.parametrize("other", [answer("b", "1", to=2), answer("b", "1", epoch=1)], ids=["older", "epoch"])
    def test_an_answer_to_another_question_is_none(self, other: NodeView) -> None:
        assert isinstance(decide(view(asked(), answer("a", "1"), other)), LookAgain)

    def test_the_report_of_the_plugins_is_entered_as_it_is(self) -> None:
        known = view(asked(), answer("a", "1"), answer("b", "2"))
        waits = replace(known, report="")
        assert due(waits) == NOW + SUMMARY_LOOK_SECONDS
        found = body(decide(replace(known, report="[3]")))
        assert found == Answers(round=1, name="load", question=3, report="[3]")
        assert then(asked(), found, at=NOW).questions.reports == {"load": (4, "[3]")}

    def test_a_successor_sums_up_what_members_have_answered(self) -> None:
        ledger = then(asked(), Leader(why="a is gone"), at=NOW - 0.5, author="b")
        found = decide(view(ledger, answer("a", "1"), answer("b", "2")))
        assert isinstance(found, SumUp)
        assert found.question == ASKED


# A node --------------------------------------------------------------------------------------------------------------


def test_a_node_asks_until_an_answer_has_come() -> None:
    node = running_node()
    node.hears(Asked(1, "load", "7"))
    node.hears(Asked(2, "of another round", "7"))
    assert row_of(node.state).asks == (Ask("load", "7", 0),)
    node.reads(QUESTION)
    assert row_of(node.state).asks == (Ask("load", "7", 0),)
    node.reads(Answers(round=1, name="load", question=3, report="1"))
    assert row_of(node.state).asks == ()
    node.hears(Asked(1, "load", "8"))
    assert row_of(node.state).asks == (Ask("load", "8", 4),), "for a newer answer than this"
    node.hears(Asked(1, "load", None))
    assert row_of(node.state).asks == ()


def test_a_node_asks_so_many_questions_at_once() -> None:
    node = running_node()
    for number in range(MAX_ASKS + 1):
        node.hears(Asked(1, f"n{number}", "7"))
    node.hears(Asked(1, "n0", "8"))
    assert len(row_of(node.state).asks) == MAX_ASKS


def test_a_node_answers_once_in_its_row() -> None:
    node = running_node()
    assert node.reads(QUESTION) == (FindAnswer(3, "load", "7"),)
    node.hears(AnswerFound(Answer(3, "1")))
    assert row_of(node.state).answer == Answer(3, "1")
    assert node.reads(Answers(round=1, name="load", question=3, report="1")) == ()
    assert row_of(node.state).answer == Answer(3, "1"), "the next leader may need it"
    node.hears(AnswerRead(3))
    assert row_of(node.state).answer is None
    node.hears(AnswerRead(3))
    assert row_of(node.state).answer is None


def test_an_answer_to_another_question_is_not_shown() -> None:
    node = running_node()
    node.reads(QUESTION)
    node.hears(AnswerFound(Answer(2, "1")))
    assert row_of(node.state).answer is None


def test_a_question_that_was_answered_already_is_not_looked_into() -> None:
    assert running_node().reads(QUESTION, Answers(round=1, name="load", question=3, report="1")) == ()


@pytest.mark.parametrize("event", [WorkersDone(), WorkerFailed(incident("a"))], ids=["done", "being stopped"])
def test_monitors_of_workers_that_do_not_run_are_not_asked(event: NodeEvent) -> None:
    node = running_node()
    node.hears(event)
    assert node.reads(QUESTION) == ()


def test_monitors_are_not_asked_about_another_round() -> None:
    assert running_node().reads(replace(QUESTION, round=2)) == ()


def test_a_node_without_workers_does_not_answer() -> None:
    node = running_node()
    node.reads(halt())
    node.hears(AnswerFound(Answer(0, "1")))
    assert row_of(node.state).answer is None
    node = Node("c")
    node.reads(sealed(), halt())
    node.hears(AnswerFound(Answer(3, "1")))
    assert row_of(node.state).answer is None, "it had no part in the round"


def test_questions_and_answers_are_forgotten_with_the_round() -> None:
    node = running_node()
    node.hears(Asked(1, "load", "7"))
    node.reads(QUESTION)
    node.hears(AnswerFound(Answer(3, "1")))
    node.reads(Round(number=2, offer=offer("a", 2), same_as=1))
    node.hears(WorkersGone(), AnswerFound(Answer(3, "late")), AnswerFound(Answer(1, "to none")))
    row = row_of(node.state)
    assert (row.asks, row.answer, node.state.ledger.questions.open) == ((), None, None)
    node.hears(Asked(1, "load", "7"))
    assert row_of(node.state).asks == ()


def test_a_question_of_another_epoch_with_the_same_index_is_another_question() -> None:
    node = running_node()
    node.reads(QUESTION, Answers(round=1, name="load", question=3, report="1"))
    node.hears(Asked(1, "load", "7"))
    node.reads(QUESTION)
    node.hears(AnswerFound(Answer(5, "1")))
    node.hears(HistoryReplaced(resumed(node.state.ledger, on=Link(3, "x"))), AnswerFound(Answer(1, "to none")))
    row = row_of(node.state)
    assert (row.answer, row.asks) == (None, (Ask("load", "7", 0),))
    node.ledger = node.state.ledger
    assert FindAnswer(5, "load", "7") in node.reads(QUESTION)


# Before a stop -------------------------------------------------------------------------------------------------------


def test_monitors_are_asked_before_workers_are_stopped_for_which_a_failed_rank_may_have_waited() -> None:
    node = running_node()
    peer = replace(incident("b"), message="RuntimeError: Connection closed by peer", follows_peer=True)
    body = Halt(round=1, reason=HaltReason.FAILURE, why="rank 2 failed", incident=peer)
    assert node.reads(body) == (Stop("rank 2 failed", halt=3),)
    node.hears(AnswerFound(Answer(3, "rank 1 sleeps")))
    node.hears(AnswerRead(3))
    assert row_of(node.state).answer == Answer(3, "rank 1 sleeps"), "the leader reads it once the round is over"
    node.hears(WorkersGone())
    assert row_of(node.state).answer == Answer(3, "rank 1 sleeps")


@pytest.mark.parametrize(
    ("reason", "follows"),
    [(HaltReason.FAILURE, False), (HaltReason.NODE_LOST, False), (HaltReason.RESIZE, False), (HaltReason.RESIZE, True)],
)
def test_of_any_other_failure_they_are_stopped_at_once(reason: HaltReason, follows: bool) -> None:
    blame = replace(incident("b"), follows_peer=follows)
    (stop,) = running_node().reads(Halt(round=1, reason=reason, why="so", incident=blame))
    assert isinstance(stop, Stop)
    assert not stop.halt


def test_the_word_of_monitors_is_in_the_root_cause_and_in_the_line_of_the_restart() -> None:
    peer = replace(incident("a"), message="RuntimeError: Connection closed by peer", follows_peer=True)
    ledger = halted("abc", HaltReason.FAILURE, blame=peer)
    index = ledger.head.anchors.halt
    nodes = [answer("a", "rank 1 sleeps", to=index), answer("b", "rank 2", to=index - 1), answer("c", "", to=index)]
    assert ledger.round is not None
    assert describe_others(view(ledger, *nodes), ledger.round, peer) == "rank 1 sleeps"
    assert describe_others(view(ledger, *nodes), ledger.round, incident("a")) == ""
    ended = halted("abc", HaltReason.GIVING_UP, blame=peer)
    ended_nodes = [replace(node, row=replace(node.row, phase=Phase.STOPPED, head=index)) for node in nodes]
    assert body(decide(view(ended, *ended_nodes))).incident.others == "rank 1 sleeps"
