"""The newest progress of each worker, with a clock of the test's: what is kept, what is published, what is posted."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from elastic_core.agent.progress_reader import (
    MATCH_MAX_SECONDS,
    READ_INTERVAL_SECONDS,
    UNREAD_MAX_BYTES,
    LossWatch,
    ProgressReader,
)
from elastic_core.events import Event, Level
from elastic_core.monitors import OutputReader, RankFailed, RunningRound
from elastic_core.progress import Checkpoint, Expressions, Progress
from elastic_core.progress_expressions import compile_expressions
from elastic_core.progress_table import PROGRESS_EVENT_SECONDS, ProgressTable, StepSeen
from elastic_core.protocol.node_events import Checkpointed
from elastic_core.protocol.roster import Reached


class Node:
    """A table of progress, a reader of one round after the other, what they have published and posted, and a clock."""

    def __init__(self, expressions: Expressions | None = None, nan_stop: int = 0) -> None:
        self.time, self.cpu, self.took = 100.0, 0.0, 0.0
        self.published: list[Event] = []
        self.posted: list[object] = []
        self.nan_stop = nan_stop
        self.table = ProgressTable(self.published.append, self.posted.append, lambda: self.time)
        self.reader = ProgressReader(expressions or Expressions(), now=lambda: self.time, cpu=self.worked)
        self.begin(1)

    def begin(self, number: int) -> None:
        """Begin a round, as the agent does."""
        self.table.begin(number)
        self.round = RunningRound(
            number, "run", ["a"], Path(), self.table, self.posted.append, self.published.append, lambda: ()
        )
        self.table.catch_up = self.round.catch_up
        self.reader.begin(self.round)
        if self.nan_stop:
            self.round.follow_progress(LossWatch(self.round, self.nan_stop).take)

    def stream(self, rank: int) -> OutputReader:
        """Open a stream of a worker."""
        [reader] = self.round.open_readers(rank)
        return reader

    def worked(self) -> float:
        self.cpu += self.took
        return self.cpu

    def prints(self, *lines: str, rank: int = 0, after: float = 1.0) -> None:
        """Have a worker print lines, one after the other."""
        for line in lines:
            self.time += after
            self.reader.read(self.round, rank, [line], self.time)

    def reports(self, rank: int = 0, after: float = 1.0, **progress: float) -> None:
        self.time += after
        self.table.observe(rank, Progress(**progress))  # type: ignore[arg-type]  # whole numbers where they have to be

    def named(self, name: str) -> list[Event]:
        return [event for event in self.published if event.name == name]


def bar(n: int) -> str:
    return f"  1%|█  | {n}/500 [00:01<00:09,  8.00it/s]"


def test_the_newest_progress_of_each_rank_and_its_age() -> None:
    node = Node()
    node.reports(step=3)
    node.reports(1, step=2, loss=0.5)
    node.reports(1, epoch=1.5)
    node.time += 5
    assert node.table.newest() == {
        0: (Progress(step=3), 7.0),
        1: (Progress(step=2, loss=0.5, epoch=1.5), 6.0),  # the step has not moved, which is what counts
    }
    node.begin(2)
    assert node.table.newest() == {}


def test_a_step_that_is_said_again_is_no_progress() -> None:
    node = Node()
    node.reports(step=3)
    node.reports(step=3, after=7.0)
    assert node.table.newest()[0][1] == 7.0


def test_a_pattern_is_published_once_and_its_progress_is_kept() -> None:
    node = Node()
    node.prints(*map(bar, range(1, 9)))
    [event] = node.named("progress_pattern")
    assert event.level is Level.INFO
    assert event.message == (
        "progress is read from the workers' output, as a tqdm bar (Accelerate, diffusers and others) says it: "
        "rank 0 is at step 3"
    )
    assert node.table.newest() == {0: (Progress(step=8), 0.0)}
    node.begin(2)
    node.reader.read(node.round, 0, [bar(1)], node.time)
    assert node.table.newest() == {0: (Progress(step=1), 0.0)}, "what workers print is known from the round before"
    assert node.named("progress_pattern") == [event]


def test_an_own_expression_needs_no_three_lines() -> None:
    node = Node(compile_expressions(r"at (?P<step>\d+)"))
    node.prints("at 7")
    [event] = node.named("progress_pattern")
    assert event.fields == {"pattern": "--progress_pattern", "rank": 0}
    assert node.table.newest()[0][0] == Progress(step=7)


def test_what_moves_beside_the_training_renews_its_age_alone() -> None:
    node = Node()
    node.prints(*map(bar, (1, 2, 3)))
    node.prints("Evaluating:  1%|█  | 1/9 [00:01<00:09,  8.00it/s]", after=20.0)
    assert node.table.newest() == {0: (Progress(step=3), 0.0)}


def test_lines_of_an_earlier_round_are_not_read() -> None:
    node = Node(compile_expressions(r"at (?P<step>\d+)"))
    stream = node.stream(0)
    node.begin(2)
    stream.feed(b"at 7\n")
    assert node.table.newest() == {}


def test_progress_is_published_every_ten_seconds_with_its_rate() -> None:
    node = Node()
    for step in range(1, 31):
        node.reports(step=10 * step, loss=0.5)
    first, second, third = node.named("progress")
    assert first.level is Level.DEBUG
    assert first.fields == {
        "rank": 0, "step": 10, "loss": 0.5, "samples": None, "epoch": None, "steps_per_s": None,
    }  # fmt: skip
    assert [event.fields["step"] for event in (second, third)] == [110, 210]
    assert second.fields["steps_per_s"] == 100 / PROGRESS_EVENT_SECONDS


def test_the_longest_time_between_two_steps_is_kept_over_rounds() -> None:
    node = Node()
    assert node.table.longest_interval() is None
    node.reports(step=1, after=1000.0)
    node.reports(step=2, after=3.0)
    node.reports(step=3, after=2.0)
    node.begin(2)
    node.reports(step=3, after=1000.0)
    assert node.table.longest_interval() == 3.0, "what comes before the first step of a round does not count"


def test_the_second_step_of_a_round_is_its_progress() -> None:
    node = Node()
    node.reports(step=4)
    assert node.posted == [], "a job that dies in the same step again and again makes none"
    node.reports(1, step=4)
    assert node.posted == []
    node.reports(step=5)
    node.reports(step=6)
    assert node.posted == [StepSeen(1)]


def test_a_failed_worker_has_its_own_step_or_its_neighbours() -> None:
    node = Node()
    assert node.table.step(0) == (None, True)
    node.reports(step=4)
    node.reports(1, step=6)
    assert [node.table.step(rank)[0] for rank in (0, 1, 2)] == [4, 6, 6]


def losses(node: Node, *values: float, first: int = 1) -> list[object]:
    for step, loss in enumerate(values, first):
        node.reports(step=step, loss=loss)
    return [event for event in node.posted if isinstance(event, RankFailed)]


NAN, INF = math.nan, math.inf


def test_as_many_broken_losses_in_a_row_as_are_allowed_fail_the_worker() -> None:
    node = Node(nan_stop=3)
    assert losses(node, 1.0, NAN, INF, 1.0, NAN, NAN) == []
    assert losses(node, -INF, NAN, NAN, first=7) == [
        RankFailed(1, 0, "NanLoss", "the loss is -inf since step 5", kill=False)
    ]


def test_broken_losses_are_counted_by_worker_and_step() -> None:
    node = Node(nan_stop=2)
    node.reports(0, step=1, loss=NAN)
    node.reports(1, step=1, loss=NAN)
    node.reports(0, step=1, loss=NAN)
    assert not any(isinstance(event, RankFailed) for event in node.posted)


def test_nothing_follows_from_broken_losses_by_default() -> None:
    assert losses(Node(), *[NAN] * 100) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("loss nan", "the loss is nan in 3 readings in a row"),
        ("loss inf e 1.5", "the loss is inf since epoch 1.5"),
    ],
)
def test_losses_without_a_step(line: str, message: str) -> None:
    node = Node(compile_expressions(r"loss (?P<loss>\S+)(?: e (?P<epoch>\S+))?"), nan_stop=3)
    node.prints(line, line, line)
    if "e" in line:
        node.prints("loss inf e 1.6", "loss inf e 1.7")
    assert [event for event in node.posted if isinstance(event, RankFailed)] == [
        RankFailed(1, 0, "NanLoss", message, kill=False)
    ]


def test_the_last_checkpoint() -> None:
    node = Node()
    assert node.table.last_checkpoint() is None
    node.reports(step=8)
    node.prints("Finished saving the checkpoint in 0.60 seconds.")
    node.time += 4.0
    assert node.table.last_checkpoint() == (8, 4.0), "a line without a step is about the newest"
    node.table.note_checkpoint(Checkpoint(None, "model.pt"), 3.0)
    assert node.table.last_checkpoint() == (None, 3.0)
    node.prints("successfully saved checkpoint from iteration 9 to /x")
    node.begin(2)
    assert node.table.last_checkpoint() == (9, 0.0)
    saved = [event for event in node.posted if isinstance(event, Checkpointed)]
    expected = [Checkpointed(1, 102.0, newer=True), Checkpointed(1, 103.0), Checkpointed(1, 107.0, newer=True)]
    assert saved == expected, "rule L13 needs every checkpoint, rule L10 those that are newer"


def saves(node: Node, number: int = 1) -> bool:
    """Whether round ``number`` has saved a checkpoint that is newer than those of earlier rounds."""
    reached = node.table.reached()
    return reached is not None and reached.round == number and reached.saved


@pytest.mark.parametrize(
    ("before", "steps", "now", "newer"),
    [
        ([], {}, Checkpoint(5), True),
        ([Checkpoint(5)], {}, Checkpoint(6), True),
        ([Checkpoint(5)], {}, Checkpoint(5), False),
        ([Checkpoint(5), Checkpoint(3)], {}, Checkpoint(4), False),
        ([Checkpoint(5)], {}, Checkpoint(None, "last.pt"), True),  # no step is known at all
        ([Checkpoint(5)], {"step": 5}, Checkpoint(None, "last.pt"), False),  # of step 5 at most
        ([Checkpoint(5)], {"step": 6}, Checkpoint(None, "last.pt"), True),
        ([Checkpoint(None, "last.pt")], {}, Checkpoint(0), True),
    ],
)
def test_a_checkpoint_is_newer_than_those_of_earlier_rounds(
    before: list[Checkpoint], steps: dict[str, int], now: Checkpoint, newer: bool
) -> None:
    node = Node()
    node.time += 9.0
    for checkpoint in before:
        node.table.note_checkpoint(checkpoint, 1.0)
    node.begin(2)
    assert not saves(node, 2)
    if steps:
        node.table.observe(0, Progress(step=steps["step"]))
    node.table.note_checkpoint(now, 1.0)
    assert saves(node, 2) is newer
    assert node.posted[-1] == Checkpointed(2, node.time - 1.0, newer=newer)


def test_a_checkpoint_from_before_the_agent_is_not_newer() -> None:
    node = Node()
    node.time += 9.0
    node.table.note_checkpoint(Checkpoint(5), 9.1)
    assert not saves(node)
    node.table.note_checkpoint(Checkpoint(5), 0.1)
    assert not saves(node), "of the same step"
    node.table.note_checkpoint(Checkpoint(6), 0.1)
    assert saves(node)


def test_a_round_whose_checkpoints_are_all_noticed_says_so_when_it_begins() -> None:
    node = Node()
    node.begin(3)
    node.round.notice_checkpoints()
    assert node.posted == [Checkpointed(3, 100.0, saved=False)]


def test_an_expression_that_takes_long_is_not_used_any_more() -> None:
    node = Node(compile_expressions(r"at (?P<step>\d+)"))
    stream = node.stream(0)
    stream.feed(b"at 1\n")
    node.took, node.time = 2 * MATCH_MAX_SECONDS, node.time + 1
    stream.feed(b"at 2\n")
    node.took, node.time = 0.0, node.time + 1
    stream.feed(b"at 3\n")
    stream.finish()
    assert [event.level for event in node.named("output_unread")] == [Level.WARNING]
    assert node.table.newest()[0][0] == Progress(step=1)


def test_the_newest_line_of_a_burst_is_read_when_it_is_asked_for_with_its_time() -> None:
    node = Node(compile_expressions(r"at (?P<step>\d+)"))
    stream = node.stream(0)
    for step in range(100):
        stream.feed(b"at %d\n" % step)
    node.time += 7.0
    assert node.table.newest() == {0: (Progress(step=99), 7.0)}
    for step in range(100, 200):
        stream.feed(b"at %d\n" % step)
    assert node.table.step(0)[0] == 199
    stream.feed(b"at 200")
    stream.finish()
    assert node.table.step(0)[0] == 200


def test_what_comes_within_a_tenth_of_a_second_is_read_together() -> None:
    node = Node(compile_expressions(r"at (?P<step>\d+)"))
    stream = node.stream(0)
    for step in range(1, 4):
        stream.feed(b"at %d\n" % step)
    assert len(node.named("progress_pattern")) == 1
    assert "rank 0 is at step 1" in node.published[0].message, "the first is read at once"
    node.time += READ_INTERVAL_SECONDS
    stream.feed(b"x" * UNREAD_MAX_BYTES)
    assert node.posted == [StepSeen(1)]


def test_streams_of_anything() -> None:
    node = Node()
    out, err = node.stream(0), node.stream(0)
    out.feed(bytes(range(256)) * 1000)
    err.feed(b"x" * 10**7)
    for n in range(1, 5):
        err.feed(f"\r{bar(n)}".encode())
    out.feed(b"'loss': Epoch iteration < step: loss: v_num= checkpoint \n" * 10**5)
    err.finish()
    out.finish()
    assert node.table.newest()[0][0] == Progress(step=4)
    assert node.named("output_unread") == []


def test_a_bar_that_begins_at_0_moves_and_is_no_step_of_an_incident() -> None:
    node = Node()
    node.prints("  0%|   | 0/500 [00:00<?, ?it/s]", *map(bar, range(1, 9)))
    assert node.table.newest()[0][0].step == 8
    assert node.table.step(0) == node.table.step(1) == (8, False), "people see it"
    assert node.table.reached() == Reached(1, None, moved=True)


def test_how_far_a_round_came_is_known_until_the_next_one_comes_anywhere() -> None:
    node = Node()
    assert node.table.reached() is None
    node.reports(step=3)
    assert node.table.reached() == Reached(1, 3)
    node.reports(1, step=4)
    node.reports(1, step=5)
    node.begin(2)
    assert node.table.reached() == Reached(1, 5, moved=True)
    node.table.note_checkpoint(Checkpoint(9))
    assert node.table.reached() == Reached(2, saved=True)
