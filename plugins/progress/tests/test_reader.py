"""Progress out of the streams of workers, with a clock of the test's: what is reported, what is published."""

from __future__ import annotations

from pathlib import Path

from elastic_core.events import Event, Level
from elastic_core.monitors import OutputReader, RunningRound
from elastic_core.progress import Progress
from elastic_core.progress_table import ProgressTable, StepSeen
from elastic_core.protocol.roster import Reached
from elastic_progress.patterns import Expressions, compile_expressions
from elastic_progress.reader import MATCH_MAX_SECONDS, READ_INTERVAL_SECONDS, UNREAD_MAX_BYTES, ProgressReader


class Node:
    """A table of progress, a reader of one round after the other, what they have published and posted, and a clock."""

    def __init__(self, expressions: Expressions | None = None) -> None:
        self.time, self.cpu, self.took = 100.0, 0.0, 0.0
        self.published: list[Event] = []
        self.posted: list[object] = []
        self.table = ProgressTable(self.published.append, self.posted.append, lambda: self.time)
        self.reader = ProgressReader(expressions or Expressions(), now=lambda: self.time, cpu=self.worked)
        self.begin(1)

    def begin(self, number: int) -> None:
        """Begin a round, as the agent does."""
        self.table.begin(number)
        self.round = RunningRound(
            number, "run", ["a"], Path(), self.table, self.posted.append, self.published.append, lambda: ()
        )
        self.table.catch_up = self.round.readers.catch_up
        self.reader.begin(self.round)

    def stream(self, rank: int) -> OutputReader:
        """Open a stream of a worker."""
        [reader] = self.round.readers.open(rank)
        return reader

    def worked(self) -> float:
        self.cpu += self.took
        return self.cpu

    def prints(self, *lines: str, rank: int = 0, after: float = 1.0) -> None:
        """Have a worker print lines, one after the other."""
        for line in lines:
            self.time += after
            self.reader.read(self.round, rank, [line], self.time)

    def named(self, name: str) -> list[Event]:
        return [event for event in self.published if event.name == name]


def bar(n: int) -> str:
    return f"  1%|█  | {n}/500 [00:01<00:09,  8.00it/s]"


def test_a_pattern_is_published_once_and_its_progress_is_kept() -> None:
    node = Node()
    node.prints(*map(bar, range(1, 9)))
    [event] = node.named("progress_pattern")
    assert event.level is Level.INFO
    assert event.message == (
        'rank 0 is at step 3, read from its output by the pattern "a tqdm bar (Accelerate, diffusers and others)"'
    )
    assert node.table.newest() == {0: (Progress(step=8), 0.0)}
    node.begin(2)
    node.reader.read(node.round, 0, [bar(1)], node.time)
    assert node.table.newest() == {0: (Progress(step=1), 0.0)}, "what workers print is known from the round before"
    assert node.named("progress_pattern") == [event]


def test_no_pattern_is_published_for_a_script_that_reports_its_steps() -> None:
    node = Node()
    node.prints(*map(bar, (1, 2)))
    node.table.observe(0, Progress(step=2))
    node.prints(*map(bar, (3, 4)))
    assert node.named("progress_pattern") == []
    assert node.table.newest() == {0: (Progress(step=4), 0.0)}


def test_an_own_expression_needs_no_three_lines() -> None:
    node = Node(compile_expressions(r"at (?P<step>\d+)"))
    node.prints("at 7")
    [event] = node.named("progress_pattern")
    assert event.message == "rank 0 is at step 7, read from its output by --progress_pattern"
    assert event.fields == {"pattern": "--progress_pattern", "rank": 0}
    assert node.table.newest()[0][0] == Progress(step=7)


def test_a_bar_beside_the_training_renews_its_age_alone() -> None:
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


def test_a_checkpoint_that_a_line_tells() -> None:
    node = Node()
    node.prints("successfully saved checkpoint from iteration 9 to /x")
    assert node.table.last_checkpoint() == (9, 0.0)


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


def test_output_within_a_tenth_of_a_second_is_read_together() -> None:
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
