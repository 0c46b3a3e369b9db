"""The judgement on a hang, from the answers of all nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest

from elastic_core.questions import REPORT_MAX_BYTES, AskedQuestion, NodeAnswer, encode
from elastic_hangs.judgement import (
    HANG,
    LOOKS,
    REPORT_BYTES,
    STACKS,
    LocalStacks,
    Report,
    culprit,
    describe_absent,
    describe_hang,
    describe_ranks,
    is_hang,
    is_new,
    next_question_at,
    report_alone,
    sum_up,
    summarize,
)

ASKS = AskedQuestion(round=1, name=HANG, value={"window": 300.0}, asked_by="host-a")
BY_HAND = AskedQuestion(round=1, name=STACKS, value={}, asked_by="shell")
FOUND = Report(round=1, why="no progress for 300 s on host-a", ranks=4, window=300.0, nth=1)
WAITS = "in all_reduce (torch/distributed/distributed_c10d.py:2810), called at train.py:41"
LOADS = "in __next__ (torch/utils/data/dataloader.py:732), called at train.py:40"
RANKS = {"a": range(2), "b": range(2, 4)}


def answer(name: str, places: Mapping[str, tuple[int, ...]], **more: Any) -> NodeAnswer:
    value = LocalStacks(places=places, **more).to_json()
    return NodeAnswer(node=f"host-{name}", ranks=RANKS[name], value=value)


def both(places: str = WAITS, **more: Any) -> list[NodeAnswer]:
    return [answer("a", {places: (0, 1)}, **more), answer("b", {places: (2, 3)}, **more)]


def test_the_report_names_the_rank_that_the_others_wait_for_first() -> None:
    nodes = answer("a", {WAITS: (0, 1)}, step=812), answer("b", {WAITS: (2,), LOADS: (3,)}, step=811)
    found = sum_up(ASKS, nodes, None)
    lines = [f"rank 3 is {LOADS}", f"ranks 0-2 are {WAITS}"]
    assert found == replace(FOUND, report="\n".join(lines), still=True, looks=1, hang=True, culprit=3, step=812)
    assert describe_hang(found).splitlines() == [
        "round 1: no progress for 300 s, since step 812:",
        *(f"  {line}" for line in lines),
    ]


def test_a_node_that_does_not_answer_in_time_is_named() -> None:
    late = NodeAnswer(node="host-b", ranks=range(2, 4), silent=True)
    found = sum_up(ASKS, [answer("a", {WAITS: (0, 1)}), late], None)
    assert found.report.splitlines()[-1] == "host-b (ranks 2-3) has not answered"
    assert not found.hang, "the one that works may be among them"


@pytest.mark.parametrize("value", [None, 7, {}, {"places": 7}, {"places": {WAITS: 2}}, {"places": {}, "load": 7}])
def test_an_answer_of_another_plugin_takes_no_report_from_the_others(value: Any) -> None:
    found = sum_up(
        ASKS, [answer("a", {WAITS: (0, 1)}), NodeAnswer(node="host-b", ranks=range(2, 4), value=value)], None
    )
    assert (found.report, found.hang) == (f"ranks 0-1 are {WAITS}", False)


def test_a_node_speaks_for_its_own_ranks_only() -> None:
    found = sum_up(ASKS, [answer("a", {WAITS: (0, 1, 3)}), answer("b", {LOADS: (0, 2, 3)})], None)
    assert sorted(found.report.splitlines()) == [f"ranks 0-1 are {WAITS}", f"ranks 2-3 are {LOADS}"]


def test_a_node_over_a_foreign_handler_judges_by_its_own_ranks() -> None:
    found = sum_up(ASKS, [answer("a", {WAITS: (0,), LOADS: (1,)})], None)
    assert (found.hang, found.culprit) == (True, 1)


def test_a_suspicion_in_which_a_stack_moves_is_no_hang() -> None:
    found = sum_up(ASKS, [answer("a", {WAITS: (0, 1)}), answer("b", {WAITS: (2, 3)}, moved=True)], None)
    assert (found.still, found.hang) == (False, False)


def test_a_window_of_a_second_is_a_suspicion() -> None:
    assert sum_up(replace(ASKS, value={"window": 1.0}), both(), None).hang


@pytest.mark.parametrize("value", [None, LocalStacks(places={}).to_json()], ids=["no monitor", "it could not look"])
def test_a_node_that_could_not_look_proves_no_hang(value: object) -> None:
    silent = NodeAnswer(node="host-b", ranks=range(2, 4), value=value)
    found = sum_up(ASKS, [answer("a", {WAITS: (0, 1)}), silent], None)
    assert (found.still, found.hang) == (True, False)


def test_a_node_that_has_finished_need_not_answer() -> None:
    done = NodeAnswer(node="host-b", ranks=range(2, 4), finished=True)
    found = sum_up(ASKS, [answer("a", {WAITS: (0, 1)}), done], None)
    assert found.report.splitlines() == [f"ranks 0-1 are {WAITS}", "ranks 2-3 have finished"]


def test_a_newer_step_than_at_the_last_suspicion_begins_the_count_anew() -> None:
    found = sum_up(ASKS, both(step=812), replace(FOUND, nth=5, step=800, still=True))
    assert (found.nth, found.step) == (1, 812)


@pytest.mark.parametrize(
    ("before", "now"),
    [(800, 800), (800, None), (None, 800), (812, 800)],
    ids=["the same step", "no step now", "no step then", "an older step"],
)
def test_without_a_newer_step_the_count_goes_on(before: int | None, now: int | None) -> None:
    found = sum_up(ASKS, both(step=now), replace(FOUND, nth=5, step=before, still=True))
    assert (found.nth, found.step) == (6, now)


@pytest.mark.parametrize(
    ("before", "moved", "looks"),
    [("as now", False, 3), ("as now", True, 0), ("elsewhere", False, 1)],
)
def test_looks_that_find_the_same_are_counted(before: str, moved: bool, looks: int) -> None:
    report = f"ranks 0-3 are {WAITS}" if before == "as now" else before
    assert sum_up(ASKS, both(moved=moved), replace(FOUND, report=report, still=True, looks=2)).looks == looks


@pytest.mark.parametrize(("busy_before", "looks"), [(True, 1), (False, 3)])
def test_looks_at_which_a_rank_may_have_worked_do_not_count_towards_its_end(busy_before: bool, looks: int) -> None:
    report = f"rank 2 is {LOADS}\nranks 0-1, 3 are {WAITS}"
    last = replace(FOUND, nth=2, report=report, still=True, looks=2, hang=True, culprit=-1 if busy_before else 2)
    found = sum_up(ASKS, [answer("a", {WAITS: (0, 1)}), answer("b", {LOADS: (2,), WAITS: (3,)})], last)
    assert (found.report, found.looks) == (report, looks)


def test_a_long_report_is_cut_to_its_share_and_says_so() -> None:
    many = {f"in {'f' * 150}{rank} (train.py:{rank})": (rank,) for rank in range(40)}
    long = replace(ASKS, asked_by="h" * 1024)
    found = sum_up(long, [NodeAnswer(node="host-a", ranks=range(40), value=LocalStacks(places=many).to_json())], None)
    assert len(found.report) <= REPORT_BYTES
    assert "more places" in found.report
    assert len(encode(asdict(found), REPORT_MAX_BYTES)) > REPORT_BYTES, "it fits"


def test_a_request_of_a_person_finds_no_hang() -> None:
    found = sum_up(BY_HAND, both(step=8), replace(FOUND, nth=1, step=7))
    assert (found.hang, found.nth, found.window, found.why) == (False, 0, 0.0, "requested by elastic stacks on shell")
    assert describe_hang(found).startswith("round 1: where the ranks are, since step 8:\n")


def test_ranks_of_one_host_alone_are_reported_without_a_judgement() -> None:
    found = report_alone(LocalStacks(places={LOADS: (0, 1)}), 4)
    assert (found.round, found.report, found.hang) == (4, f"ranks 0-1 are {LOADS}", False)


@pytest.mark.parametrize(("nth", "windows"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 8)])
def test_the_time_between_two_questions_doubles_three_times(nth: int, windows: int) -> None:
    assert next_question_at(replace(FOUND, nth=nth), 9.0, 300.0) == 9.0 + windows * 300.0


@pytest.mark.parametrize(("seconds", "window"), [(100.0, 300.0), (700.0, 700.0)])
def test_the_next_question_waits_for_the_longer_one_of_the_last_window_and_this_one(
    seconds: float, window: float
) -> None:
    assert next_question_at(FOUND, 9.0, seconds) == 9.0 + window


def test_after_a_question_without_a_report_the_next_one_waits_for_the_window() -> None:
    assert next_question_at(None, 9.0, 300.0) == 309.0


@pytest.mark.parametrize(("looks", "windows"), [(1, 0.25), (2, 0.25), (LOOKS, 4.0)])
def test_a_hang_is_looked_at_again_soon_until_it_was_seen_three_times(looks: int, windows: float) -> None:
    report = replace(FOUND, nth=3, hang=True, looks=looks)
    assert next_question_at(report, 9.0, 300.0) == 9.0 + windows * 300.0


def test_of_ranks_before_a_stop_those_are_told_that_wait_for_no_other() -> None:
    places = {WAITS: (1,), LOADS: (3,), "finished": (2,), "the process is gone": (0,)}
    assert describe_absent(LocalStacks(places=places)) == f"rank 3 is {LOADS}"
    assert describe_absent(LocalStacks(places={WAITS: (1,)})) == ""


class TestBehind:
    """Ranks that hang while others come to newer steps."""

    def report(self, behind: Mapping[str, int], *, moved: bool = True, by: AskedQuestion = ASKS) -> Report:
        nodes = answer("a", {WAITS: (0, 1)}, step=60, moved=moved), answer("b", {LOADS: (2, 3)}, behind=behind)
        return sum_up(by, nodes, None)

    def test_the_report_names_only_them(self) -> None:
        found = self.report({"3": 5, "2": 6})
        assert found.report == f"ranks 2-3 are {LOADS}, while other ranks go on to newer steps"
        assert (found.hang, found.culprit, found.step, found.looks, found.still) == (True, 3, 5, 1, False)

    @pytest.mark.parametrize(
        ("behind", "by"),
        [
            pytest.param({"3": 60}, ASKS, id="it is as far as the others"),
            pytest.param({"3": 61}, ASKS, id="it is further"),
            pytest.param({"1": 5}, ASKS, id="of another node's rank"),
            pytest.param({"3": 5}, BY_HAND, id="a person asks"),
        ],
    )
    def test_others_are_not_blamed(self, behind: Mapping[str, int], by: AskedQuestion) -> None:
        assert not self.report(behind, by=by).hang

    def test_while_nothing_moves_the_others_wait(self) -> None:
        assert self.report({"3": 5}, moved=False).report.splitlines()[-1] == f"ranks 0-1 are {WAITS}"

    def test_looks_are_counted_while_the_others_go_on(self) -> None:
        first = self.report({"3": 5})
        nodes = answer("a", {LOADS: (0, 1)}, step=99, moved=True), answer("b", {LOADS: (2, 3)}, behind={"3": 5})
        found = sum_up(ASKS, nodes, first)
        assert (found.looks, found.report, is_new(found, first)) == (2, first.report, False)


@pytest.mark.parametrize(
    ("report", "step", "new"),
    [("as before", 7, False), ("as before", 8, True), ("otherwise", 7, True)],
)
def test_a_report_is_printed_once_for_each_hang(report: str, step: int, new: bool) -> None:
    hang = replace(BEFORE, hang=True, report="as before")
    assert is_new(replace(hang, report=report, step=step), hang) is new
    assert not is_new(replace(hang, report=report, hang=False), hang)
    assert is_new(hang, None)


STILL = LocalStacks(places={})
BUSY = replace(STILL, busy=True)
BEFORE = replace(FOUND, still=True, step=7)


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
def test_it_is_a_hang_if_nothing_moves(answers: list[LocalStacks], before: Report | None, hang: bool) -> None:
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
