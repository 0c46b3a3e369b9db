"""Where the ranks of a round are, as the leader asks, sums up and judges it, and as a node answers (rule L14)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from test_leader import NOW, body, running, view
from test_node import Node, halt, running as running_node
from test_repair import resumed
from views import halted, incident, info, live, offer, seen, then

from elastic_core.protocol.entries import Halt, HaltReason, Leader, Round, Stacks
from elastic_core.protocol.failure_detector import NodeView
from elastic_core.protocol.leader import decide
from elastic_core.protocol.leader_entries import Append, LookAgain
from elastic_core.protocol.leader_view import LeaderView
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.limits import MAX_REQUESTS, REPORT_BYTES, UNREAD_ID_LENGTH
from elastic_core.protocol.node import row_of
from elastic_core.protocol.node_events import (
    AnswerRead,
    Grace,
    HistoryReplaced,
    Hung,
    Locate,
    Located,
    Stop,
    WorkerFailed,
    WorkersGone,
)
from elastic_core.protocol.roster import LocalStacks, NodeRow, Phase
from elastic_core.protocol.stacks import (
    ANSWER_WAIT_SECONDS,
    LOOKS,
    ask_or_report,
    culprit,
    describe_hang,
    describe_others,
    describe_ranks,
    is_hang,
    is_news,
    summarize,
)

ASKS = Stacks(round=1, why="no progress for 300 s on host-a", window=300.0, nth=1)
WAITS = "in all_reduce (torch/distributed/distributed_c10d.py:2810), called at train.py:41"
LOADS = "in __next__ (torch/utils/data/dataloader.py:732), called at train.py:40"


def hung(name: str, seconds: float = 300.0, **more: Any) -> NodeView:
    return running(name, hung=seconds, **more)


def request(name: str = "stacks-1", *, wants: str = "brief", serial: int = 9) -> NodeView:
    row = NodeRow(info=replace(info("x"), node_id=name, host="shell"), wants_stacks=wants)
    return replace(seen("x"), row=row, serial=serial)


def asked(*, at: float = NOW - 1, by: Stacks = ASKS) -> Ledger:
    return then(live("ab"), by, at=at)


def answer(name: str, places: Mapping[str, tuple[int, ...]], *, question: int = 3, **more: Any) -> NodeView:
    epoch = more.pop("epoch", 0)
    return running(name, stacks=LocalStacks(answers=question, places=places, **more), epoch=epoch)


def due(known: LeaderView) -> Append | float | None:
    """What is due in the round, or when a question may be due."""
    assert known.ledger.round is not None
    return ask_or_report(known, known.ledger.round, ())


class TestQuestion:
    def test_a_node_that_sees_no_progress_has_all_asked(self) -> None:
        assert body(decide(view(live("ab"), hung("a"), running("b")))) == ASKS

    def test_a_request_of_a_person_has_all_asked_and_is_no_suspicion(self) -> None:
        found = body(decide(view(live("ab"), running("a"), running("b"), request())))
        assert found == Stacks(round=1, why="requested by elastic stacks on shell", requests=("stacks-1",))

    def test_a_request_for_the_whole_stacks_says_so(self) -> None:
        found = body(decide(view(live("ab"), running("a"), running("b"), request(wants="full"))))
        assert isinstance(found, Stacks)
        assert found.full

    def test_a_suspicion_and_requests_are_one_question(self) -> None:
        many = [request(f"stacks-{i}", serial=9 + i) for i in range(MAX_REQUESTS + 1)]
        found = body(decide(view(live("ab"), hung("a"), running("b"), *many)))
        assert isinstance(found, Stacks)
        assert (found.window, len(found.requests)) == (300.0, MAX_REQUESTS)

    @pytest.mark.parametrize(
        "nodes",
        [
            pytest.param([running("a"), running("b")], id="all make progress"),
            pytest.param([seen("a", Phase.FINISHED, head=2, hung=300.0), running("b")], id="it has finished"),
            pytest.param([hung("a", number=7), running("b")], id="that was another round"),
        ],
    )
    def test_no_question_is_asked_without_need(self, nodes: list[NodeView]) -> None:
        assert isinstance(decide(view(live("ab"), *nodes)), LookAgain)

    def test_no_question_is_asked_before_all_members_have_begun(self) -> None:
        ledger = live("ab", at=NOW - 0.5)
        assert isinstance(decide(view(ledger, hung("a"), running("b", head=1, arrived=NOW))), LookAgain)

    def test_a_failure_comes_first(self) -> None:
        found = decide(view(live("ab"), hung("a", incident=incident("a")), running("b")))
        assert not isinstance(getattr(found, "body", None), Stacks)

    def test_after_a_report_the_next_question_comes_a_window_later_and_then_two(self) -> None:
        first = then(asked(at=NOW - 300), replace(ASKS, answers=3, report="x"), at=NOW - 299)
        found = decide(view(first, hung("a", head=4), running("b", head=4)))
        assert isinstance(found, LookAgain)
        assert found.at == NOW + 1
        ledger = then(asked(at=NOW - 302), replace(ASKS, answers=3, report="x"), at=NOW - 301)
        assert body(decide(view(ledger, hung("a", head=4), running("b", head=4)))) == replace(ASKS, nth=2)
        again = then(then(ledger, replace(ASKS, nth=2), at=NOW - 300), replace(ASKS, nth=2, answers=5), at=NOW - 300)
        assert isinstance(decide(view(again, hung("a", head=6), running("b", head=6))), LookAgain)

    def test_a_request_that_was_served_is_not_served_again(self) -> None:
        by_hand = Stacks(round=1, why="by hand", requests=("stacks-1",))
        served = then(asked(by=by_hand), replace(by_hand, answers=3, report="x"), at=NOW - 0.5)
        assert isinstance(decide(view(served, running("a"), running("b"), request())), LookAgain)
        more = decide(view(served, running("a"), running("b"), request(), request("stacks-2", serial=10)))
        found = body(more)
        assert isinstance(found, Stacks)
        assert found.requests == ("stacks-2",)

    def test_a_request_of_a_person_does_not_hasten_the_next_question_of_a_suspicion(self) -> None:
        first = then(asked(at=NOW - 299), replace(ASKS, answers=3, report="x", hang=True, looks=LOOKS), at=NOW - 299)
        by_hand = Stacks(round=1, why="by hand", requests=("stacks-1",))
        ledger = then(then(first, by_hand, at=NOW - 8), replace(by_hand, answers=5, report="x"), at=NOW - 8)
        found = decide(view(ledger, hung("a", head=6), running("b", head=6)))
        assert isinstance(found, LookAgain)
        assert found.at == NOW + 1

    def test_of_several_windows_the_longest_counts(self) -> None:
        found = body(decide(view(live("ab"), hung("a", 300.0), hung("b", 400.0))))
        assert isinstance(found, Stacks)
        assert found.window == 400.0

    @pytest.mark.parametrize(("seconds", "window"), [(100.0, 300.0), (700.0, 700.0)])
    def test_the_next_question_waits_for_the_longer_one_of_the_last_window_and_this_one(
        self, seconds: float, window: float
    ) -> None:
        ledger = then(asked(at=NOW - 9), replace(ASKS, answers=3, report="x"), at=NOW - 9)
        assert due(view(ledger, hung("a", seconds, head=4), running("b", head=4))) == NOW - 9 + window
        later = then(asked(at=NOW - window), replace(ASKS, answers=3, report="x"), at=NOW - window)
        assert isinstance(body(decide(view(later, hung("a", seconds, head=4), running("b", head=4)))), Stacks)

    def test_the_time_between_two_questions_doubles_three_times(self) -> None:
        for nth, windows in ((1, 1), (2, 2), (3, 4), (4, 8), (5, 8)):
            by = replace(ASKS, nth=nth)
            ledger = then(asked(at=NOW - 9, by=by), replace(by, answers=3, report="x"), at=NOW - 9)
            known = view(ledger, hung("a", head=4), running("b", head=4))
            assert due(known) == NOW - 9 + windows * 300.0

    @pytest.mark.parametrize(("looks", "windows"), [(1, 0.25), (2, 0.25), (3, 4.0)])
    def test_a_hang_is_looked_at_again_soon_until_it_was_seen_three_times(self, looks: int, windows: float) -> None:
        by = replace(ASKS, nth=3)
        report = replace(by, answers=3, report="x", hang=True, looks=looks)
        ledger = then(asked(at=NOW - 9, by=by), report, at=NOW - 9)
        assert due(view(ledger, hung("a", head=4), running("b", head=4))) == NOW - 9 + windows * 300.0

    @pytest.mark.parametrize(
        ("before", "moved", "looks"),
        [("as now", False, 3), ("as now", True, 0), ("elsewhere", False, 1)],
    )
    def test_looks_that_find_the_same_are_counted(self, before: str, moved: bool, looks: int) -> None:
        report = f"ranks 0-3 are {WAITS}" if before == "as now" else before
        last = replace(ASKS, answers=3, nth=2, report=report, still=True, looks=2)
        ledger = then(then(asked(), last, at=NOW - 400), replace(ASKS, nth=3), at=NOW - 1)
        nodes = [
            answer(name, {WAITS: ranks}, question=5, moved=moved) for name, ranks in (("a", (0, 1)), ("b", (2, 3)))
        ]
        found = body(decide(view(ledger, *nodes)))
        assert isinstance(found, Stacks)
        assert found.looks == looks

    @pytest.mark.parametrize(("busy_before", "looks"), [(True, 1), (False, 3)])
    def test_looks_at_which_a_rank_may_have_worked_do_not_count_towards_its_end(
        self, busy_before: bool, looks: int
    ) -> None:
        report = f"rank 2 is {LOADS}\nranks 0-1, 3 are {WAITS}"
        last = replace(ASKS, answers=3, nth=2, report=report, still=True, looks=2, hang=True)
        last = replace(last, culprit=-1 if busy_before else 2)
        ledger = then(then(asked(), last, at=NOW - 400), replace(ASKS, nth=3), at=NOW - 1)
        nodes = answer("a", {WAITS: (0, 1)}, question=5), answer("b", {LOADS: (2,), WAITS: (3,)}, question=5)
        found = body(decide(view(ledger, *nodes)))
        assert isinstance(found, Stacks)
        assert (found.report, found.looks) == (report, looks)

    def test_a_request_before_the_next_question_of_a_suspicion_is_no_suspicion(self) -> None:
        ledger = then(asked(at=NOW - 9), replace(ASKS, answers=3, report="x"), at=NOW - 9)
        found = body(decide(view(ledger, hung("a", head=4), running("b", head=4), request())))
        assert found == Stacks(round=1, why="requested by elastic stacks on shell", requests=("stacks-1",))

    @pytest.mark.parametrize(("length", "served"), [(UNREAD_ID_LENGTH, True), (UNREAD_ID_LENGTH + 1, False)])
    def test_a_request_with_too_long_an_id_is_ignored(self, length: int, served: bool) -> None:
        found = body(decide(view(live("ab"), hung("a"), running("b"), request("s" * length))))
        assert isinstance(found, Stacks)
        assert found.requests == (("s" * length,) if served else ())


class TestReport:
    def test_the_leader_waits_until_all_have_answered(self) -> None:
        found = decide(view(asked(), answer("a", {WAITS: (0, 1)}), running("b")))
        assert isinstance(found, LookAgain)
        assert found.at == NOW - 1 + ANSWER_WAIT_SECONDS

    def test_the_report_names_the_rank_that_the_others_wait_for_first(self) -> None:
        nodes = answer("a", {WAITS: (0, 1)}, step=812), answer("b", {WAITS: (2,), LOADS: (3,)}, step=811)
        found = body(decide(view(asked(), *nodes)))
        lines = [f"rank 3 is {LOADS}", f"ranks 0-2 are {WAITS}"]
        assert found == replace(
            ASKS, answers=3, report="\n".join(lines), still=True, looks=1, hang=True, culprit=3, step=812
        )
        assert isinstance(found, Stacks)
        assert describe_hang(found).splitlines() == [
            "round 1: no progress for 300 s, since step 812:",
            *(f"  {line}" for line in lines),
        ]

    def test_a_node_that_does_not_answer_in_time_is_named(self) -> None:
        found = body(decide(view(asked(at=NOW - ANSWER_WAIT_SECONDS), answer("a", {WAITS: (0, 1)}), running("b"))))
        assert isinstance(found, Stacks)
        assert found.report.splitlines()[-1] == "host-b (ranks 2-3) has not answered"
        assert not found.hang, "the one that works may be among them"

    def test_a_member_without_a_row_has_not_answered(self) -> None:
        known = view(asked(at=NOW - ANSWER_WAIT_SECONDS), answer("a", {WAITS: (0, 1)}))
        found = due(known)
        assert isinstance(found, Append)
        assert isinstance(found.body, Stacks)
        assert found.body.report.splitlines()[-1] == "b (ranks 2-3) has not answered"

    def test_a_lost_member_is_not_waited_for(self) -> None:
        known = view(asked(), answer("a", {WAITS: (0, 1)}), running("b", changed=0.0))
        assert isinstance(due(known), Append)

    def test_a_node_speaks_for_its_own_ranks_only(self) -> None:
        nodes = answer("a", {WAITS: (0, 1, 3)}), answer("b", {LOADS: (0, 2, 3)})
        found = body(decide(view(asked(), *nodes)))
        assert isinstance(found, Stacks)
        assert sorted(found.report.splitlines()) == [f"ranks 0-1 are {WAITS}", f"ranks 2-3 are {LOADS}"]

    def test_a_node_over_a_foreign_handler_judges_by_its_own_ranks(self) -> None:
        foreign = answer("b", {})
        info = replace(foreign.row.info, host_id="")
        peer = replace(foreign, row=replace(foreign.row, info=info, stacks=None))
        found = body(decide(view(asked(), answer("a", {WAITS: (0,), LOADS: (1,)}), peer)))
        assert isinstance(found, Stacks)
        assert (found.hang, found.culprit) == (True, 1)
        assert found.report.splitlines() == [f"rank 1 is {LOADS}", f"rank 0 is {WAITS}"]

    def test_a_suspicion_in_which_a_stack_moves_is_no_hang(self) -> None:
        nodes = answer("a", {WAITS: (0, 1)}), answer("b", {WAITS: (2, 3)}, moved=True)
        found = body(decide(view(asked(), *nodes)))
        assert isinstance(found, Stacks)
        assert (found.still, found.hang) == (False, False)

    def test_a_window_of_a_second_is_a_suspicion(self) -> None:
        nodes = answer("a", {WAITS: (0, 1)}), answer("b", {WAITS: (2, 3)})
        found = body(decide(view(asked(by=replace(ASKS, window=1.0)), *nodes)))
        assert isinstance(found, Stacks)
        assert found.hang

    def test_a_node_that_could_not_look_proves_no_hang(self) -> None:
        found = body(decide(view(asked(), answer("a", {WAITS: (0, 1)}), answer("b", {}))))
        assert isinstance(found, Stacks)
        assert (found.still, found.hang) == (True, False)

    def test_a_newer_step_than_at_the_last_suspicion_begins_the_count_anew(self) -> None:
        before = replace(ASKS, answers=3, nth=5, step=800, still=True)
        ledger = then(then(asked(), before, at=NOW - 400), replace(ASKS, nth=6), at=NOW - 1)
        nodes = [answer(name, {WAITS: ranks}, question=5, step=812) for name, ranks in (("a", (0, 1)), ("b", (2, 3)))]
        found = body(decide(view(ledger, *nodes)))
        assert isinstance(found, Stacks)
        assert (found.nth, found.step) == (1, 812)

    @pytest.mark.parametrize(
        ("before", "now", "nth", "after"),
        [
            (800, 800, 6, 6),
            (800, None, 6, 6),
            (None, 800, 6, 6),
            (812, 800, 6, 6),
            (800, 812, 0, 0),
        ],
        ids=["the same step", "no step now", "no step then", "an older step", "a request of a person"],
    )
    def test_without_a_newer_step_the_count_goes_on(
        self, before: int | None, now: int | None, nth: int, after: int
    ) -> None:
        last = replace(ASKS, answers=3, nth=5, step=before, still=True)
        question = replace(ASKS, nth=nth, window=300.0 if nth else 0.0)
        ledger = then(then(asked(), last, at=NOW - 400), question, at=NOW - 1)
        nodes = [answer(name, {WAITS: ranks}, question=5, step=now) for name, ranks in (("a", (0, 1)), ("b", (2, 3)))]
        found = body(decide(view(ledger, *nodes)))
        assert isinstance(found, Stacks)
        assert (found.nth, found.step) == (after, now)

    def test_the_first_suspicion_with_a_known_step_begins_the_count(self) -> None:
        nodes = [answer(name, {WAITS: ranks}, step=8) for name, ranks in (("a", (0, 1)), ("b", (2, 3)))]
        found = body(decide(view(asked(by=replace(ASKS, nth=2)), *nodes)))
        assert isinstance(found, Stacks)
        assert found.nth == 2

    def test_a_node_that_has_finished_need_not_answer(self) -> None:
        done = seen("b", Phase.FINISHED, head=2)
        found = body(decide(view(asked(), answer("a", {WAITS: (0, 1)}), done)))
        assert isinstance(found, Stacks)
        assert found.report.splitlines() == [f"ranks 0-1 are {WAITS}", "ranks 2-3 have finished"]

    @pytest.mark.parametrize("other", [answer("b", {}, question=2), answer("b", {}, epoch=1)], ids=["older", "epoch"])
    def test_an_answer_to_another_question_is_none(self, other: NodeView) -> None:
        assert isinstance(decide(view(asked(), answer("a", {WAITS: (0, 1)}), other)), LookAgain)

    def test_a_successor_reports_what_members_have_answered(self) -> None:
        ledger = then(asked(), Leader(why="a is gone"), at=NOW - 0.5, author="b")
        found = body(decide(view(ledger, answer("a", {WAITS: (0, 1)}), answer("b", {LOADS: (2, 3)}))))
        assert isinstance(found, Stacks)
        assert found.answers == 3

    def test_a_long_report_is_cut_to_its_share_and_says_so(self) -> None:
        many = {f"in {'f' * 150}{rank} (train.py:{rank})": (rank,) for rank in range(40)}
        ledger = then(asked(by=replace(ASKS)), Leader(why="x"), at=NOW - 0.9)
        nodes = answer("a", many), answer("b", many)
        found = body(decide(view(ledger, *nodes)))
        assert isinstance(found, Stacks)
        assert len(found.report) <= REPORT_BYTES

    def test_stacks_that_a_person_asked_for_are_no_hang(self) -> None:
        by_hand = Stacks(round=1, why="by hand", requests=("stacks-1",))
        nodes = answer("a", {WAITS: (0, 1)}), answer("b", {WAITS: (2, 3)})
        found = body(decide(view(asked(by=by_hand), *nodes)))
        assert isinstance(found, Stacks)
        assert not found.hang
        assert describe_hang(found).startswith("round 1: where the ranks are:\n")


class TestBehind:
    """Ranks that hang while others come to newer steps."""

    def report(self, behind: Mapping[str, int], *, step: int = 60, moved: bool = True, by: Stacks = ASKS) -> Stacks:
        nodes = answer("a", {WAITS: (0, 1)}, step=step, moved=moved), answer("b", {LOADS: (2, 3)}, behind=behind)
        found = body(decide(view(asked(by=by), *nodes)))
        assert isinstance(found, Stacks)
        return found

    def test_the_report_names_only_them(self) -> None:
        found = self.report({"3": 5, "2": 6})
        assert found.report == f"ranks 2-3 are {LOADS}, while other ranks go on to newer steps"
        assert (found.hang, found.culprit, found.step, found.looks, found.still) == (True, 3, 5, 1, False)

    @pytest.mark.parametrize(
        ("behind", "more"),
        [
            pytest.param({"3": 60}, {}, id="it is as far as the others"),
            pytest.param({"3": 61}, {}, id="it is further"),
            pytest.param({"1": 5}, {}, id="of another node's rank"),
            pytest.param({"3": 5}, {"by": Stacks(round=1, why="x", requests=("stacks-1",))}, id="a person asks"),
        ],
    )
    def test_others_are_not_blamed(self, behind: Mapping[str, int], more: Any) -> None:
        assert not self.report(behind, **more).hang

    def test_while_nothing_moves_the_others_wait(self) -> None:
        assert self.report({"3": 5}, moved=False).report.splitlines()[-1] == f"ranks 0-1 are {WAITS}"

    def test_looks_are_counted_while_the_others_go_on(self) -> None:
        first = self.report({"3": 5})
        ledger = then(then(asked(), first, at=NOW - 400), replace(ASKS, nth=2), at=NOW - 1)
        nodes = (
            answer("a", {LOADS: (0, 1)}, question=5, step=99, moved=True),
            answer("b", {LOADS: (2, 3)}, question=5, behind={"3": 5}),
        )
        found = body(decide(view(ledger, *nodes)))
        assert isinstance(found, Stacks)
        assert (found.looks, found.report, is_news(found, first)) == (2, first.report, False)


@pytest.mark.parametrize(
    ("report", "step", "news"),
    [("as before", 7, False), ("as before", 8, True), ("otherwise", 7, True)],
)
def test_a_report_is_printed_once_for_each_hang(report: str, step: int, news: bool) -> None:
    hang = replace(BEFORE, hang=True, report="as before")
    ledger = then(then(asked(), hang, at=NOW - 9), replace(BEFORE, report="one moves", hang=False), at=NOW - 5)
    assert is_news(replace(hang, report=report, step=step), ledger.hang) is news
    assert not is_news(replace(hang, report=report, hang=False), ledger.hang)


STILL = LocalStacks(answers=3, places={})
BUSY = replace(STILL, busy=True)
BEFORE = replace(ASKS, answers=3, still=True, step=7)


@pytest.mark.parametrize(
    ("answers", "before", "hang"),
    [
        pytest.param([], None, False, id="no answer"),
        pytest.param([STILL, STILL], None, True, id="nothing moves"),
        pytest.param([STILL, replace(STILL, moved=True)], None, False, id="a stack moves"),
        pytest.param([STILL, BUSY], None, False, id="a rank computes"),
        pytest.param([STILL, BUSY], replace(BEFORE, step=None), False, id="a rank computes, and no step is known"),
        pytest.param([replace(STILL, step=7), BUSY], None, False, id="a rank computes at a known step"),
        pytest.param([replace(STILL, step=7), BUSY], BEFORE, True, id="as it did a window ago"),
        pytest.param([replace(STILL, step=8), BUSY], BEFORE, False, id="at another step than a window ago"),
        pytest.param([replace(STILL, step=7), BUSY], replace(BEFORE, still=False), False, id="it moved then"),
        pytest.param([replace(STILL, step=7, moved=True)], BEFORE, False, id="a slow step"),
        pytest.param([replace(BUSY, step=7, moved=True)], BEFORE, False, id="a slow step on a CPU"),
    ],
)
def test_it_is_a_hang_if_nothing_moves(answers: list[LocalStacks], before: Stacks | None, hang: bool) -> None:
    assert is_hang(answers, before, {0: LOADS, 1: LOADS}) is hang


@pytest.mark.parametrize(
    ("places", "report", "hang"),
    [
        pytest.param({0: WAITS, 1: LOADS, 2: WAITS}, None, True, id="the others wait, as they did a window ago"),
        pytest.param({0: WAITS, 1: LOADS, 2: WAITS}, "", False, id="it was elsewhere a window ago"),
        pytest.param({0: LOADS, 1: LOADS, 2: WAITS}, None, False, id="one waits"),
        pytest.param({0: LOADS}, None, False, id="there is no other"),
    ],
)
def test_without_steps_a_busy_rank_hangs_if_all_others_wait_twice(
    places: dict[int, str], report: str | None, hang: bool
) -> None:
    before = "\n".join(summarize(places)) if report is None else report
    assert is_hang([STILL, BUSY], replace(BEFORE, step=None, report=before), places) is hang


@pytest.mark.parametrize(
    ("places", "rank"),
    [
        ({}, -1),
        ({0: WAITS, 1: WAITS}, 0),
        ({0: WAITS, 1: LOADS}, 1),
        ({0: "finished", 1: WAITS, 2: WAITS}, 1),
        ({0: WAITS, 1: "no Python stack: stopped by a signal (SIGSTOP)", 2: WAITS}, 1),
        ({0: WAITS, 1: WAITS, 2: WAITS.replace("41", "52")}, 2),
        ({0: "in synchronize (torch/cuda/streams.py:9)", 1: LOADS, 2: LOADS}, 1),
    ],
    ids=[
        "no answer",
        "all at one place",
        "outside of a collective",
        "who has finished",
        "stopped",
        "another line",
        "for a device",
    ],
)
def test_the_rank_to_end_is_the_one_that_the_others_wait_for(places: dict[int, str], rank: int) -> None:
    assert culprit([STILL], places) == rank


def test_a_rank_that_may_be_working_is_not_ended() -> None:
    assert culprit([STILL, BUSY], {0: WAITS, 1: LOADS}) == -1


@pytest.mark.parametrize(
    ("places", "line"),
    [
        ({0: LOADS, 1: "in sleep (train.py:3)"}, "it cannot be told which rank the others wait for:"),
        ({0: LOADS, 1: "in sleep (train.py:3)", 2: WAITS}, "it cannot be told which rank the others wait for:"),
        ({0: WAITS, 1: WAITS.replace("all_reduce", "all_gather")}, "the ranks wait in different collectives:"),
        ({0: LOADS, 1: WAITS}, f"rank 0 is {LOADS}"),
        ({0: LOADS, 1: LOADS, 2: "in sleep (train.py:3)"}, "rank 2 is in sleep (train.py:3)"),
        ({0: WAITS, 1: WAITS}, f"ranks 0-1 are {WAITS}"),
    ],
)
def test_the_first_line_says_where_no_rank_stands_out(places: dict[int, str], line: str) -> None:
    assert summarize(places)[0] == line


def test_where_nothing_hangs_the_places_are_no_diagnosis() -> None:
    places = {0: LOADS, 1: "in sleep (train.py:3)"}
    lines = [f"rank 0 is {LOADS}", "rank 1 is in sleep (train.py:3)"]
    assert summarize(places, requested=True) == summarize(places)[1:] == lines


def test_the_ranks_at_the_rarest_place_come_first() -> None:
    places = dict.fromkeys(range(8), WAITS) | {3: LOADS, 9: "the process is gone", 10: "finished"}
    assert summarize(places) == [
        "rank 9: the process is gone",
        f"rank 3 is {LOADS}",
        f"ranks 0-2, 4-7 are {WAITS}",
        "rank 10 has finished",
    ]


@pytest.mark.parametrize(("ranks", "text"), [([0], "0"), ([0, 1], "0-1"), ([0, 2, 3, 4, 9], "0, 2-4, 9"), ([], "")])
def test_ranks_are_written_as_ranges(ranks: list[int], text: str) -> None:
    assert describe_ranks(ranks) == text


# A node --------------------------------------------------------------------------------------------------------------


def located(node: Node, question: int = 3) -> LocalStacks:
    found = LocalStacks(answers=question, places={WAITS: (0, 1)})
    node.hears(Located(found))
    return found


def test_a_node_looks_where_its_ranks_are_once_and_answers_in_its_row() -> None:
    node = running_node()
    assert node.reads(ASKS) == (Locate(3, full=False, judge=True),)
    found = located(node)
    assert row_of(node.state).stacks == found
    assert node.reads(replace(ASKS, answers=3, report="x")) == ()
    assert row_of(node.state).stacks == found, "the next leader may need it"
    node.hears(AnswerRead(3))
    assert row_of(node.state).stacks is None


def test_workers_that_a_failed_rank_may_have_waited_for_are_asked_before_they_are_stopped() -> None:
    node = running_node()
    peer = replace(incident("b"), message="RuntimeError: Connection closed by peer", follows_peer=True)
    body = Halt(round=1, reason=HaltReason.FAILURE, why="rank 2 failed", incident=peer)
    assert node.reads(body) == (Stop(Grace.BROKEN, "rank 2 failed", halt=3),)
    found = located(node)
    node.hears(AnswerRead(3))
    assert row_of(node.state).stacks == found, "the leader reads it once the round is over"
    node.hears(WorkersGone())
    assert row_of(node.state).stacks == found


@pytest.mark.parametrize("reason", [HaltReason.FAILURE, HaltReason.NODE_LOST, HaltReason.RESIZE])
def test_of_any_other_failure_they_are_stopped_at_once(reason: HaltReason) -> None:
    (stop,) = running_node().reads(Halt(round=1, reason=reason, why="so", incident=incident("b")))
    assert isinstance(stop, Stop)
    assert not stop.halt


def test_where_others_were_is_in_the_root_cause_and_in_the_line_of_the_restart() -> None:
    peer = replace(incident("a"), message="RuntimeError: Connection closed by peer", follows_peer=True)
    ledger = halted("ab", HaltReason.FAILURE, blame=peer)
    index = ledger.head.anchors.halt
    places = {WAITS: (1,), LOADS: (3,), "finished": (2,), "the process is gone": (0,)}
    nodes = [answer("a", places, question=index), answer("b", {LOADS: (2,)}, question=index - 1)]
    assert ledger.round is not None
    assert describe_others(view(ledger, *nodes), ledger.round, peer) == f"rank 3 is {LOADS}"
    assert describe_others(view(ledger, *nodes), ledger.round, incident("a")) == ""


def test_a_question_that_was_answered_already_is_not_looked_into() -> None:
    node = running_node()
    assert node.reads(ASKS, replace(ASKS, answers=3, report="x")) == ()


def test_a_node_without_workers_does_not_answer() -> None:
    node = running_node()
    node.reads(halt())
    assert row_of(node.state).stacks is None
    node.hears(Located(LocalStacks(answers=0, places={WAITS: (0,)})))
    assert row_of(node.state).stacks is None


def test_the_hang_of_a_round_is_forgotten_with_it() -> None:
    node = running_node()
    node.hears(Hung(1, 300.0))
    assert row_of(node.state).hung == 300.0
    node.reads(ASKS)
    located(node)
    node.reads(Round(number=2, offer=offer("a", 2), same_as=1))
    node.hears(WorkersGone())
    row = row_of(node.state)
    assert (row.hung, row.stacks, node.state.ledger.stacks) == (0.0, None, None)
    node.hears(Hung(1, 300.0))
    assert row_of(node.state).hung == 0.0


def test_a_question_of_another_epoch_with_the_same_index_is_another_question() -> None:
    node = running_node()
    node.reads(ASKS)
    located(node)
    node.hears(HistoryReplaced(resumed(node.state.ledger)))
    assert row_of(node.state).stacks is None


def test_the_next_failure_of_the_round_says_where_the_ranks_were() -> None:
    node = running_node()
    report = replace(ASKS, answers=3, report=f"rank 3 is {LOADS}", hang=True)
    node.reads(ASKS, report)
    node.hears(WorkerFailed(replace(incident("a"), detail="Traceback …\n")))
    assert node.state.incident is not None
    assert node.state.incident.detail == f"Traceback …\n{describe_hang(report)}"


def test_a_request_of_a_person_does_not_displace_the_report_of_a_hang() -> None:
    node = running_node()
    report = replace(ASKS, answers=3, report=f"rank 3 is {LOADS}", hang=True)
    by_hand = Stacks(round=1, why="by hand", requests=("stacks-1",))
    node.reads(ASKS, report, by_hand, replace(by_hand, answers=5, report="x"))
    node.hears(WorkerFailed(incident("a")))
    assert node.state.incident is not None
    assert node.state.incident.detail == describe_hang(report)


def test_a_report_without_a_hang_is_no_part_of_a_failure() -> None:
    node = running_node()
    node.reads(ASKS, replace(ASKS, answers=3, report="x"))
    node.hears(WorkerFailed(incident("a")))
    assert node.state.incident == incident("a")
