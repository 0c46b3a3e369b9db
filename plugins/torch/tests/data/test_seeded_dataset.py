"""The random numbers of an augmentation depend on the sample and the epoch alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from elastic_torch import ElasticDistributedSampler, SeededDataset, TrainState

Sample = tuple[int, float, float, float]


class Noise(Dataset[Sample]):
    """Each sample draws from every generator."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Sample:
        return index, torch.rand(()).item(), random.random(), float(np.random.rand())


def epochs(workers: int, persistent: bool = False, after: int = 0) -> list[dict[int, tuple[float, ...]]]:
    """Return the value of each sample of two epochs, from a step on."""
    data = SeededDataset(Noise(), seed=4)
    sampler = ElasticDistributedSampler(data, 1, 0, global_batch_size=3)
    loader = DataLoader(data, batch_sampler=sampler.batches(), num_workers=workers, persistent_workers=persistent)
    state = TrainState(model=nn.Linear(1, 1), sampler=sampler)
    found: list[dict[int, tuple[float, ...]]] = [{}, {}]
    if after:
        step = ElasticDistributedSampler(data, 1, 0, global_batch_size=3)
        for _ in zip(range(after), step.batches(), strict=False):
            step.advance()
        sampler.load_state_dict(step.state_dict())
    for epoch in state.epochs(2):
        for index, *drawn in state.batches(loader):
            for number, *values in zip(index.tolist(), *(each.tolist() for each in drawn), strict=True):
                found[epoch][number] = tuple(values)
    return found


@pytest.mark.parametrize(("workers", "persistent"), [(1, False), (2, True)])
def test_a_sample_is_the_same_whoever_makes_it_and_after_whatever(workers: int, persistent: bool) -> None:
    alone = epochs(0)
    assert [len(each) for each in alone] == [12, 12]
    assert len({value for each in alone for values in each.values() for value in values}) == 72, "all unlike"
    assert epochs(workers, persistent) == alone
    first, second = epochs(workers, persistent, after=2)
    assert len(first) == 6
    assert first.items() <= alone[0].items()
    assert second == alone[1]


def test_the_generators_of_the_training_stay_as_they_are() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    numbers = torch.rand(()), random.random(), np.random.rand()
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    SeededDataset(Noise())[3]
    assert (torch.rand(()), random.random(), np.random.rand()) == numbers
