"""Losses that are nan or infinite: how many in a row fail a worker."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from elastic_core.monitors import RankFailed, RunningRound
from elastic_core.progress import Progress
from elastic_core.progress_table import ProgressTable
from elastic_progress.plugin import LossWatch

NAN, INF = math.nan, math.inf


class Round:
    """A round whose losses are watched, and the failures that were posted for it."""

    def __init__(self, most: int) -> None:
        self.failed: list[object] = []
        round = RunningRound(
            1, "run", ["a"], Path(), ProgressTable(), self.failed.append, lambda event: None, lambda: ()
        )
        self.watch = LossWatch(round, most)

    def loses(self, *losses: float, rank: int = 0, first: int = 1) -> None:
        """Have a rank report a loss in each of the steps from ``first`` on."""
        for step, loss in enumerate(losses, first):
            self.watch.take(rank, Progress(step=step, loss=loss))


def test_as_many_broken_losses_in_a_row_as_are_allowed_fail_the_worker() -> None:
    round = Round(3)
    round.loses(1.0, NAN, INF, 1.0, NAN, NAN)
    assert round.failed == []
    round.loses(-INF, NAN, NAN, first=7)
    assert round.failed == [RankFailed(1, 0, "NanLoss", "the loss is -inf since step 5", kill=False)]


def test_broken_losses_are_counted_by_worker_and_step() -> None:
    round = Round(2)
    round.loses(NAN, rank=0)
    round.loses(NAN, rank=1)
    round.loses(NAN, rank=0)
    assert round.failed == []


@pytest.mark.parametrize(
    ("readings", "message"),
    [
        ([Progress(loss=NAN)] * 3, "the loss is nan in 3 readings in a row"),
        ([Progress(loss=INF, epoch=epoch) for epoch in (1.5, 1.6, 1.7)], "the loss is inf since epoch 1.5"),
    ],
)
def test_losses_without_a_step(readings: list[Progress], message: str) -> None:
    round = Round(3)
    for progress in readings:
        round.watch.take(0, progress)
    assert round.failed == [RankFailed(1, 0, "NanLoss", message, kill=False)]
