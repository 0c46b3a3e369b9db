"""The newest progress of each worker, with a clock of the test's: what is kept, what is published, what is posted."""

from __future__ import annotations

import pytest

from elastic_core.events import Event, Level
from elastic_core.progress import Checkpoint, Progress
from elastic_core.progress_table import PROGRESS_EVENT_SECONDS, ProgressTable, StepSeen
from elastic_core.protocol.node_events import Checkpointed
from elastic_core.protocol.roster import Reached


class Node:
    """A table of progress, what it has published and posted, and a clock."""

    def __init__(self) -> None:
        self.time = 100.0
        self.published: list[Event] = []
        self.posted: list[object] = []
        self.table = ProgressTable(self.published.append, self.posted.append, lambda: self.time)
        self.table.begin(1)

    def reports(self, rank: int = 0, after: float = 1.0, **progress: float) -> None:
        self.time += after
        self.table.observe(rank, Progress(**progress))  # type: ignore[arg-type]  # whole numbers where they have to be

    def named(self, name: str) -> list[Event]:
        return [event for event in self.published if event.name == name]


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
    node.table.begin(2)
    assert node.table.newest() == {}


def test_a_step_that_is_said_again_is_no_progress() -> None:
    node = Node()
    node.reports(step=3)
    node.reports(step=3, after=7.0)
    assert node.table.newest()[0][1] == 7.0


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
    assert node.table.longest_step is None
    node.reports(step=1, after=1000.0)
    node.reports(step=2, after=3.0)
    node.reports(step=3, after=2.0)
    node.table.begin(2)
    node.reports(step=3, after=1000.0)
    assert node.table.longest_step == 3.0, "what comes before the first step of a round does not count"


@pytest.mark.parametrize("noticed_first", [True, False])
def test_a_pause_makes_no_step_longer(noticed_first: bool) -> None:
    """A step may be reported after the pause and before that is noticed."""
    node = Node()
    node.reports(step=1)
    node.reports(step=2, after=3.0)
    node.time += 10_000.0
    if not noticed_first:
        node.reports(step=3, after=0.0)
    node.table.skip_pause(3.0, number=1)
    node.reports(step=4, after=2.0)
    assert node.table.longest_step == 3.0
    node.reports(step=5, after=4.0)
    assert node.table.longest_step == 4.0
    node.table.begin(2)
    node.table.skip_pause(3.0, number=1)
    assert node.table.longest_step == 4.0, "a monitor of a round that is over changes nothing"


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


def test_the_last_checkpoint() -> None:
    node = Node()
    assert node.table.last_checkpoint() is None
    node.reports(step=8)
    node.table.note_checkpoint(Checkpoint())
    node.time += 4.0
    assert node.table.last_checkpoint() == (8, 4.0), "a checkpoint without a step that was saved just now"
    node.table.note_checkpoint(Checkpoint(None, "model.pt"), 3.0)
    assert node.table.last_checkpoint() == (None, 3.0)
    node.table.note_checkpoint(Checkpoint(9))
    node.table.begin(2)
    assert node.table.last_checkpoint() == (9, 0.0)
    saved = [event for event in node.posted if isinstance(event, Checkpointed)]
    expected = [Checkpointed(1, 101.0, newer=True), Checkpointed(1, 102.0), Checkpointed(1, 105.0, newer=True)]
    assert saved == expected, "rule L13 needs every checkpoint, rule L10 those that are newer"


def saves(node: Node, number: int = 1) -> bool:
    """Return True if round ``number`` has saved a checkpoint that is newer than those of earlier rounds."""
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
    node.table.begin(2)
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


def test_a_step_that_does_not_count_on_over_rounds_moves_alone() -> None:
    node = Node()
    for step in (1, 2):
        node.table.observe(0, Progress(step=step, counts_on=False))
    assert node.table.step(0) == node.table.step(1) == (2, False), "people see it"
    assert node.table.reached() == Reached(1, None, moved=True)


def test_how_far_a_round_came_is_known_until_the_next_one_comes_anywhere() -> None:
    node = Node()
    assert node.table.reached() is None
    node.reports(step=3)
    assert node.table.reached() == Reached(1, 3)
    node.reports(1, step=4)
    node.reports(1, step=5)
    node.table.begin(2)
    assert node.table.reached() == Reached(1, 5, moved=True)
    node.table.note_checkpoint(Checkpoint(9))
    assert node.table.reached() == Reached(2, saved=True)
