"""The monitor that looks for hangs, over a round with made-up workers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.events import Event, Level
from elastic_core.monitors import RankFailed, RunningRound, WorkerView
from elastic_core.progress import Progress
from elastic_core.progress_table import ProgressTable
from elastic_core.protocol.node_events import Asked
from elastic_core.questions import AskedQuestion, NodeAnswer
from elastic_hangs import monitor
from elastic_hangs.judgement import FULL_STACKS, HANG, STACKS, LocalStacks, Report
from elastic_hangs.monitor import HangMonitor, WatchedRound, hang_event
from elastic_hangs.stacks import LocalRank, Wanted
from elastic_hangs.watch import HangWatch, Use

WINDOW = 10.0
WHERE, JUDGE = Wanted(), Wanted(judge=True)
ASKS, ASKS_NO_LONGER = Asked(3, HANG, '{"window":10.0}'), Asked(3, HANG, None)
FOUND = Report(
    round=3, why="", window=300.0, nth=1, report="rank 2 is in f", still=True, hang=True, culprit=2, step=9, looks=3
)


def view(rank: int = 0, *, pid: int | None = 10, exit_code: int | None = None, is_over: bool = False) -> WorkerView:
    return WorkerView(rank, rank, pid, exit_code, is_over)


@dataclass
class Node:
    """A node of round 3, its workers, and what a monitor has posted and published."""

    workers: list[WorkerView] = field(default_factory=lambda: [view()])
    at: float = 0.0
    used: int = 0
    posted: list[object] = field(default_factory=list)
    published: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.progress = ProgressTable(now=lambda: self.at)
        self.progress.begin(3)
        self.round = RunningRound(
            3,
            "run",
            ["n1"],
            Path(),
            self.progress,
            self.posted.append,
            self.published.append,
            look=lambda: self.workers,
        )
        self.watch = HangWatch(
            WINDOW, self.round, cpu=lambda pid: 0.0, written=lambda pid: 0, uses=self.uses, now=lambda: self.at
        )
        self.watched = WatchedRound(self.round, self.watch, self.find)
        self.asked: list[Sequence[LocalRank]] = []
        self.found = LocalStacks(places={"in f": (0,)})
        self.takes = 0.0
        """Seconds that it takes to find out where the ranks are."""

    def uses(self, pids: Collection[int]) -> dict[int, Use]:
        self.used += 1
        return {pid: Use(self.at, self.used, 0, 0, 0, 0) for pid in pids}

    def find(self, asked: Wanted, ranks: Sequence[LocalRank], step: int | None) -> LocalStacks:
        self.asked.append(ranks)
        self.at += self.takes
        return replace(self.found, step=step)

    def look(self, *instants: float) -> None:
        """Look at these instants, and between them as often as an agent does that is not paused."""
        for instant in instants:
            while instant - self.at > WINDOW / 2:
                self.at += WINDOW / 2
                self.watched.look()
            self.at = instant
            self.watched.look()


def test_a_suspicion_is_reported_when_a_silence_begins_and_when_it_ends() -> None:
    node = Node()
    node.look(0.0, 5.0, 10.0, 11.0)
    assert node.posted == [ASKS], "once"
    node.progress.observe(0, Progress(step=1))
    node.look(12.0, 13.0)
    assert node.posted == [ASKS, ASKS_NO_LONGER]


@pytest.mark.parametrize(
    "worker",
    [
        pytest.param(view(1, pid=None), id="is being started"),
        pytest.param(view(1, exit_code=0), id="has ended"),
        pytest.param(view(1, is_over=True), id="its program is over"),
    ],
)
def test_only_living_workers_whose_program_is_not_over_are_looked_at(worker: WorkerView) -> None:
    node = Node([worker])
    node.look(0.0, 10.0, 20.0)
    assert node.posted == []
    node.workers.append(view())
    node.look(21.0, 31.0)
    assert node.posted == [ASKS]


def test_a_suspicion_ends_with_the_round() -> None:
    node = Node()
    node.look(0.0, 10.0)
    node.round.closed.set()
    node.look(20.0)
    assert node.posted == [ASKS, ASKS_NO_LONGER]


def test_without_a_descriptor_nothing_is_suspected_and_no_place_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()

    def fail(*_: object) -> float:
        raise OSError

    monkeypatch.setattr(node.watch, "cpu", fail)
    node.look(0.0, 20.0)
    assert node.posted == []
    watched = WatchedRound(node.round, None, fail)  # type: ignore[arg-type]
    assert watched.answer(WHERE) == LocalStacks(places={}).to_json()


def test_ranks_are_found_where_hangs_are_not_looked_for() -> None:
    node = Node([view(0), view(1, pid=None), view(2, is_over=True)])
    node.progress.observe(1, Progress(step=7))
    assert WatchedRound(node.round, None, node.find).answer(JUDGE) == replace(node.found, step=7).to_json()
    assert node.asked == [[LocalRank(0, 10), LocalRank(1, None), LocalRank(2, 10, finished=True)]]
    assert node.posted == []


def test_ranks_are_asked_with_their_use_since_their_silence_began() -> None:
    node = Node()
    node.look(0.0, 5.0, 10.0)
    node.watched.answer(WHERE)
    assert node.asked == [[LocalRank(0, 10, quiet=Use(5.0, 1, 0, 0, 0, 0), prints=False)]]


def test_an_agent_that_was_paused_notices_it_before_it_answers() -> None:
    node = Node()
    node.look(0.0, 5.0, 10.0)
    node.at = 25.0
    node.watched.answer(JUDGE)
    assert node.posted == [ASKS, ASKS_NO_LONGER]
    assert node.asked == [[LocalRank(0, 10, quiet=None, prints=True)]]


def test_the_cost_of_a_request_is_no_use_of_the_worker() -> None:
    node = Node()
    node.look(0.0, 5.0)
    node.takes = 2.0
    node.watched.answer(WHERE)
    assert node.watch.quiet == {10: Use(7.0, 2, 0, 0, 0, 0)}, "as if the two seconds and what they used had not been"


def test_a_silence_that_begins_during_a_request_is_left_as_it_is() -> None:
    node = Node()
    node.look(0.0, 5.0)

    def find(asked: Wanted, ranks: Sequence[LocalRank], step: int | None) -> LocalStacks:
        node.at = 6.0
        node.watch.quiet[10] = Use(6.0, 9, 0, 0, 0, 0)
        return node.found

    WatchedRound(node.round, node.watch, find).answer(WHERE)
    assert node.watch.quiet == {10: Use(6.0, 9, 0, 0, 0, 0)}


def test_a_rank_that_comes_to_a_new_step_during_a_request_moves_and_is_not_behind() -> None:
    node = Node([view(0), view(1, pid=11)])
    for rank in (0, 1):
        node.progress.observe(rank, Progress(step=1))
    node.look(0.0, 30.0)

    def find(asked: Wanted, ranks: Sequence[LocalRank], step: int | None) -> LocalStacks:
        node.progress.observe(1, Progress(step=2))
        return replace(node.found, behind={"0": 1, "1": 1})

    found = WatchedRound(node.round, node.watch, find).answer(WHERE)
    assert (found["moved"], found["behind"]) == (True, {"0": 1})


def test_a_silence_that_ends_during_a_judged_request_is_told_before_the_answer() -> None:
    node = Node()
    node.look(0.0, 10.0)

    def find(asked: Wanted, ranks: Sequence[LocalRank], step: int | None) -> LocalStacks:
        node.progress.observe(0, Progress(step=1))
        return node.found

    watched = WatchedRound(node.round, node.watch, find)
    watched.look()
    watched.answer(WHERE)
    assert node.posted[-1] == ASKS
    watched.answer(JUDGE)
    assert node.posted[-1] == ASKS_NO_LONGER


@pytest.mark.parametrize(
    ("report", "step", "ended"),
    [
        pytest.param(FOUND, 9, True, id="it hangs"),
        pytest.param(FOUND, None, True, id="no step is known here"),
        pytest.param(FOUND, 10, False, id="the workers have gone on"),
        pytest.param(replace(FOUND, looks=2), 9, False, id="it was not seen often enough"),
        pytest.param(replace(FOUND, still=False), 9, True, id="others go on, and it is where it was"),
        pytest.param(replace(FOUND, still=False), 10, False, id="others go on, and so has it"),
    ],
)
def test_a_rank_that_hangs_is_ended(report: Report, step: int | None, ended: bool) -> None:
    node = Node()
    if step is not None:
        node.progress.observe(2, Progress(step=step))
    node.watched.end(report)
    failed = RankFailed(3, 2, "Hang", "no progress for 300 s; rank 2 is in f", kill=True)
    assert node.posted == ([failed] if ended else [])


def test_a_report_from_before_a_pause_of_the_agent_ends_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node([view(2)])
    monkeypatch.setattr(time, "monotonic", lambda: node.at)
    node.watched = WatchedRound(node.round, node.watch, node.find, ends_ranks=True)
    node.look(0.0, WINDOW)
    assert node.posted == [ASKS]
    node.at = 10 * WINDOW
    node.watched.take(asdict(FOUND))
    node.look(11 * WINDOW)
    assert node.posted == [ASKS, ASKS], "all are asked again after a window"
    node.watched.take(asdict(FOUND))
    assert node.posted[2:] == [RankFailed(3, 2, "Hang", "no progress for 300 s; rank 2 is in f", kill=True)]


@pytest.mark.parametrize(("printed_at", "ended"), [(0.0, True), (0.9, False)])
def test_a_rank_that_has_printed_lately_is_not_ended(printed_at: float, ended: bool) -> None:
    """A report may be read late, as after an outage of the store."""
    node = Node([replace(view(2), tails=(b"",))])
    node.look(printed_at * WINDOW / 2)
    node.workers = [replace(view(2), tails=(b"epoch 1",))]
    node.look(printed_at * WINDOW, WINDOW)
    node.watched.end(FOUND)
    assert (node.posted[-1:] == [RankFailed(3, 2, "Hang", "no progress for 300 s; rank 2 is in f", kill=True)]) is ended


def test_newer_steps_of_others_do_not_save_a_rank_that_alone_hangs() -> None:
    node = Node()
    node.progress.observe(2, Progress(step=9))
    node.progress.observe(0, Progress(step=12))
    node.watched.end(FOUND)
    assert node.posted == [], "nothing moved, and now something does"
    node.watched.end(replace(FOUND, still=False))
    assert len(node.posted) == 1


def test_a_node_asks_again_in_time_and_no_longer_than_the_silence_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    monkeypatch.setattr(time, "monotonic", lambda: node.at)
    node.look(0.0, 10.0)
    assert node.posted == [ASKS]
    node.watched.take(asdict(replace(FOUND, window=WINDOW, hang=False, nth=2)))
    node.look(29.0)
    assert node.posted == [ASKS], "twice as late as the first time"
    node.look(30.0)
    assert node.posted == [ASKS, ASKS]
    node.watched.take(None)
    node.look(39.0)
    assert node.posted == [ASKS, ASKS], "without a report, after the window"
    node.look(40.0)
    assert node.posted == [ASKS, ASKS, ASKS]


def test_a_silence_is_shown_in_the_nodes_row_while_it_lasts() -> None:
    node = Node()
    node.look(0.0, 10.0)
    assert node.round.notes == {"no progress": "for 10.0 s: elastic stacks says where its ranks are"}
    node.progress.observe(0, Progress(step=1))
    node.look(12.0)
    assert node.round.notes == {}


def test_a_failure_tells_of_a_hang_until_the_ranks_go_on() -> None:
    node = Node()
    node.watched.take(asdict(FOUND))
    assert node.round.explanations == ["round 3: no progress for 300 s, since step 9:\n  rank 2 is in f"]
    node.watched.take(asdict(replace(FOUND, report="rank 1 is in g")))
    assert node.round.explanations == ["round 3: no progress for 300 s, since step 9:\n  rank 1 is in g"]
    node.watched.take(asdict(replace(FOUND, hang=False)))
    assert node.round.explanations == []
    assert [(event.name, event.level) for event in node.published] == [
        ("hang", Level.WARNING),
        ("hang", Level.WARNING),
        ("stacks", Level.DEBUG),
    ]


def test_a_hang_is_told_and_what_moves_is_only_for_programs() -> None:
    found = replace(FOUND, why="no progress for 300 s on host-a", report="rank 2 is in f\nranks 0-1 are in g")
    message = "round 3: no progress for 300 s, since step 9:\n  rank 2 is in f\n  ranks 0-1 are in g"
    fields: dict[str, Any] = {"round": 3, "why": found.why, "stacks": found.report, "step": 9, "window_s": 300.0}
    assert hang_event(found, None) == Event("hang", message, Level.WARNING, {**fields, "rank": 2})
    moves = hang_event(replace(found, hang=False), None)
    assert (moves.name, moves.level, moves.fields["rank"]) == ("stacks", Level.DEBUG, None)
    assert hang_event(found, found).name == "stacks", "it was told"


def test_where_ranks_are_before_they_are_stopped() -> None:
    node = Node()
    assert node.watched.say_last() == "rank 0 is in f"


def test_the_plugin_sums_up_its_own_questions_only() -> None:
    asked = AskedQuestion(round=3, name=STACKS, value={}, asked_by="shell")
    answers = [NodeAnswer(node="host-a", ranks=range(1), value=LocalStacks(places={"in f": (0,)}).to_json())]
    found = HangMonitor().elastic_sum_up_answers(asked, answers, asdict(FOUND))
    assert found["report"] == "rank 0 is in f"
    assert HangMonitor().elastic_sum_up_answers(replace(asked, name="another"), answers, None) is None


def begin(node: Node, window: float | None = None, timeout: float | None = None) -> None:
    """Start round 3 with these flags."""
    program = Program(ProgramKind.SCRIPT, "train.py")
    monitor = HangMonitor()
    settings = {"hang_window": window, "hang_timeout": timeout}
    monitor.elastic_configure(RunConfig(program=program, settings=settings))
    monitor.elastic_round_starts(node.round)


@pytest.mark.parametrize(
    ("window", "timeout", "watches", "reads", "ends"),
    [
        pytest.param(None, None, True, False, False, id="by default a single worker keeps the agent's stdout"),
        pytest.param(60.0, None, True, True, False, id="with a window its output is read"),
        pytest.param(None, 60.0, True, True, True, id="with a limit a rank is ended as well"),
        pytest.param(0.0, None, False, False, False, id="switched off"),
    ],
)
def test_the_flags_say_what_the_monitor_does(
    window: float | None, timeout: float | None, watches: bool, reads: bool, ends: bool
) -> None:
    node = Node([])
    begin(node, window, timeout)
    assert node.round.readers.every_stream is reads
    assert bool(watchers()) is watches
    for name in (HANG, STACKS, FULL_STACKS):
        assert json.loads(node.round.callbacks.find(name, "{}"))["places"] == {}, "it answers in any case"
    [take] = [take for name, take in node.round.callbacks.followers if name == HANG]
    take(asdict(FOUND))
    assert bool([event for event in node.posted if isinstance(event, RankFailed)]) is ends
    node.round.closed.set()
    for thread in watchers():
        thread.join(60.0)
    assert not watchers(), "its thread ends with the round"


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "elastic-hangs"]


def test_a_silence_is_noticed_without_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "hang_check_interval", lambda window: 0.01)
    node, told = Node([view(pid=None)]), threading.Event()
    node.round.post = lambda event: told.set()
    begin(node, window=0.1)
    node.workers[:] = [view(pid=1 << 30)]
    assert told.wait(60.0)
    node.round.closed.set()


def test_py_spy_that_may_read_nothing_is_reported_once() -> None:
    monitor, node = HangMonitor(), Node([])
    monitor.elastic_configure(RunConfig(program=Program(ProgramKind.SCRIPT, "train.py"), settings={"hang_window": 0.0}))
    for _ in range(2):
        monitor.elastic_round_starts(node.round)
        monitor._spy._refuse()
    assert [event.name for event in node.published] == ["py_spy"]
