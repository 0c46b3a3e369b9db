"""A step of several batches, of any number of ranks, has the gradient of one process that takes its samples at once."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from elastic_core.errors import UsageError
from elastic_torch.data.sampler import ElasticDistributedSampler
from elastic_torch.state.train_state import TrainState

SAMPLES, STEP = 26, 12
DATA = TensorDataset(torch.arange(SAMPLES, dtype=torch.float64)[:, None], torch.ones(SAMPLES, 1).double())
Reduction = Literal["mean", "sum"]


class Rank:
    """One of several ranks, and what it adds to the gradient of each step; the average over all of them counts."""

    def __init__(self, rank: int, ranks: int, batch: int, workers: int = 0) -> None:
        self.model = nn.Linear(1, 1).double()
        nn.init.ones_(self.model.weight)
        nn.init.ones_(self.model.bias)
        self.sampler = ElasticDistributedSampler(DATA, ranks, rank, global_batch_size=batch)
        self.loader = DataLoader(DATA, batch_sampler=self.sampler.batches(), num_workers=workers)
        self.state = TrainState(model=self.model, sampler=self.sampler)

    def gradients(self, accumulate: int, reduction: Reduction = "mean", steps: int = 99) -> list[list[float]]:
        found = []
        for _ in self.state.epochs(1):
            for x, y in self.state.batches(self.loader, accumulate=accumulate):
                loss = nn.functional.mse_loss(self.model(x), y, reduction=reduction) * self.state.loss_weight(reduction)
                loss.backward()
                if self.state.sync_gradients:
                    found.append([p.grad.item() for p in self.model.parameters() if p.grad is not None])
                    self.model.zero_grad()
                    if len(found) == steps:
                        return found
        return found


def averaged(gradients: list[list[list[float]]]) -> list[list[float]]:
    """Over ranks, for each step."""
    return [[sum(each) / len(each) for each in zip(*step, strict=True)] for step in zip(*gradients, strict=True)]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 2), (1, 12), (2, 3), (3, 4), (4, 3), (5, 1), (5, 2)])
def test_each_step_is_that_of_one_process(ranks: int, accumulate: int, reduction: Reduction) -> None:
    [one] = [Rank(0, 1, STEP).gradients(1)]
    many = [Rank(rank, ranks, STEP // accumulate).gradients(accumulate, reduction) for rank in range(ranks)]
    assert len(one) == 3, "the last of two samples"
    for mine, right in zip(averaged(many), one, strict=True):
        assert mine == pytest.approx(right, rel=1e-12)


def test_other_ranks_with_other_batches_go_on_in_the_midst_of_an_epoch_though_the_loader_reads_ahead() -> None:
    [one] = [Rank(0, 1, STEP).gradients(1)]
    first = [Rank(rank, 2, 4, workers=1) for rank in range(2)]
    began = averaged([rank.gradients(3, steps=1) for rank in first])
    for rank in first:
        rank.sampler.advance()  # the loop was left within its last batch
        rank.state.batch += 1
        rank.state.commit()
    second = [Rank(rank, 3, 6, workers=1) for rank in range(3)]
    for rank in second:
        rank.state.load_state_dict(first[0].state.state_dict())
    went_on = averaged([rank.gradients(2) for rank in second])
    for mine, right in zip([*began, *went_on], one, strict=True):
        assert mine == pytest.approx(right, rel=1e-12)
    assert {rank.state.step for rank in second} == {3}


def test_without_an_elastic_sampler_the_batches_of_a_step_count_alike() -> None:
    state = TrainState(model=nn.Linear(1, 1))
    loader = DataLoader(DATA, batch_size=6)
    seen = [(state.sync_gradients, state.loss_weight()) for _ in state.batches(loader, accumulate=3)]
    assert seen == [(False, 1 / 3), (False, 1 / 3), (True, 1 / 3), (False, 1 / 2), (True, 1 / 2)]
    assert state.step == 2
    with pytest.raises(ValueError, match="reduction='sum' needs an ElasticDistributedSampler"):
        state.loss_weight("sum")


def test_of_a_loader_without_a_length_nobody_knows_the_last_batch() -> None:
    state = TrainState(model=nn.Linear(1, 1))
    seen = [state.sync_gradients for _ in state.batches(iter(range(5)), accumulate=2)]
    assert seen == [False, True, False, True, False]
    assert state.step == 3
    with pytest.raises(ValueError, match="accumulate=0"):
        next(state.batches([], accumulate=0))


def test_an_elastic_sampler_that_nobody_would_advance_is_refused() -> None:
    sampler = ElasticDistributedSampler(DATA, 1, 0, global_batch_size=6)
    loader = DataLoader(DATA, batch_sampler=sampler.batches())
    with pytest.raises(UsageError, match="that the TrainState does not know"):
        next(TrainState(model=nn.Linear(1, 1)).batches(loader))
    state = TrainState(model=nn.Linear(1, 1), sampler=sampler.batches())
    next(state.batches(loader))
    sampler.set_epoch(1)
    with pytest.raises(UsageError, match="The sampler is in epoch 1, and the TrainState in epoch 0"):
        next(state.batches(loader))
