"""An epoch that ended before its samples did is an error with any sharder; a loop that was left early is none."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

from elastic_torch import ElasticDistributedSampler, EpochNotReadError, TrainState

STEPS = 24
DATA = TensorDataset(torch.arange(STEPS * 4))
QUIET = "ignore:.*multi-threaded, use of fork:DeprecationWarning"


def sampler(ranks: int = 2, **given: Any) -> ElasticDistributedSampler:
    return ElasticDistributedSampler(DATA, ranks, 0, global_batch_size=4, **given)


class Unknown(BatchSampler):
    """An unknown framework's: every n-th batch."""

    def __init__(self, inner: Iterable[list[int]], every: int) -> None:
        self.inner, self.every = inner, every

    def __iter__(self) -> Iterator[list[int]]:
        for index, batch in enumerate(self.inner):
            if index % self.every == 0:
                yield batch


def sharded(ours: ElasticDistributedSampler, every: int = 2, workers: int = 0) -> DataLoader[Any]:
    return DataLoader(DATA, batch_sampler=Unknown(ours.batches(), every), num_workers=workers)


def train(ours: ElasticDistributedSampler, loader: Iterable[Any], most: int = 99, every: int = 1) -> int:
    """Train at most so many batches, and commit after each ``every`` of them."""
    done = 0
    for done, _ in enumerate(itertools.islice(loader, most), 1):
        if done % every == 0:
            ours.advance()
    return done


def epochs(state: TrainState, loader: Iterable[Any], count: int) -> None:
    for _ in state.epochs(count):
        for _ in state.batches(loader):
            pass


@pytest.mark.filterwarnings(QUIET)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("every", [2, 3])
def test_a_state_whose_loader_gave_a_part_of_what_was_drawn_ends_with_an_error(every: int, workers: int) -> None:
    ours = sampler()
    state = TrainState(model=nn.Linear(1, 1), sampler=ours)
    with pytest.raises(EpochNotReadError, match=rf"only {STEPS // every} of its {STEPS} steps were committed") as told:
        epochs(state, sharded(ours, every, workers), 1)  # the last one
    assert "accelerator.prepare" in str(told.value)
    assert state.step == STEPS // every


@pytest.mark.filterwarnings(QUIET)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_loop_of_ones_own_learns_it_at_the_end_of_the_first_epoch(ranks: int, workers: int) -> None:
    ours = sampler(ranks)
    with pytest.raises(EpochNotReadError, match=rf"of its {STEPS} steps were committed: each rank drew {STEPS} batch"):
        train(ours, sharded(ours, ranks, workers))


def test_a_loader_that_is_sharded_all_at_once_is_told_of_when_it_ends() -> None:
    ours = sampler()
    state = TrainState(model=nn.Linear(1, 1), sampler=ours)
    half = list(ours.batches())[::2]
    with pytest.warns(UserWarning, match=f"The loader ended after {STEPS // 2} of the {STEPS} steps of epoch 0"):
        epochs(state, half, 1)


def test_batches_that_are_committed_at_once_after_several_are_said_to_be_that() -> None:
    ours = sampler()
    train(ours, DataLoader(DATA, batch_sampler=ours.batches()), every=4)
    with pytest.warns(UserWarning, match=rf"last {STEPS * 3 // 4} steps .* advance\(\) once for each batch .* accumul"):
        ours.set_epoch(1)


def test_batches_whose_losses_are_weighed_one_by_one_have_come_to_the_loop() -> None:
    ours = sampler()
    for done, _ in enumerate(DataLoader(DATA, batch_sampler=ours.batches()), 1):
        ours.loss_weight()
        if done % 2 == 0:
            ours.advance()
    with pytest.warns(UserWarning, match="also with gradient accumulation"):
        ours.set_epoch(1)


@pytest.mark.filterwarnings(QUIET)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("by_state", [True, False])
@pytest.mark.parametrize("most", [1, 2, 9, STEPS - 3, STEPS])
def test_a_healthy_program_gets_no_warning(most: int, by_state: bool, workers: int) -> None:
    """Stop at a number of steps, on purpose, in each epoch; with loaders that have read on by then."""
    ours = sampler()
    state = TrainState(model=nn.Linear(1, 1), sampler=ours)
    loader = DataLoader(DATA, batch_sampler=ours.batches(), num_workers=workers)
    for epoch in range(3):
        if by_state:
            state.epoch = epoch
        ours.set_epoch(epoch)
        batches = iter(state.batches(loader)) if by_state else iter(loader)
        for done, _ in enumerate(batches, 1):
            if not by_state:
                ours.advance()
            if done == most:
                break
        del batches


@pytest.mark.parametrize("most", [3, 9])
def test_a_limit_around_the_loader_is_said_and_is_no_error(most: int) -> None:
    ours = sampler()
    state = TrainState(model=nn.Linear(1, 1), sampler=ours)
    loader = DataLoader(DATA, batch_sampler=ours.batches())
    for _ in state.epochs(2):
        with pytest.warns(UserWarning, match=f"The loader ended after {most} of the {STEPS} steps"):
            for _ in state.batches(itertools.islice(loader, most)):
                pass
    assert state.step == 2 * most


def test_an_evaluation_that_commits_nothing_is_no_error() -> None:
    ours = sampler(shuffle=False)
    loader = DataLoader(DATA, batch_sampler=ours.batches())
    for _ in range(3):
        assert len(list(loader)) == STEPS


def test_a_tail_that_the_loader_leaves_out_is_said_and_is_no_error() -> None:
    data = TensorDataset(torch.arange(STEPS * 4 + 1))
    ours = ElasticDistributedSampler(data, 2, 0, global_batch_size=4)
    state = TrainState(model=nn.Linear(1, 1), sampler=ours)
    loader = DataLoader(data, sampler=ours, batch_size=ours.batch_size, drop_last=True)
    with pytest.warns(UserWarning, match=f"The loader ended after {STEPS} of the {STEPS + 1} steps of epoch 0"):
        for _ in state.batches(loader):
            pass


@pytest.mark.parametrize("behind", [1, 3])
def test_a_sampler_that_is_set_back_after_a_load_is_warned_of(behind: int) -> None:
    before = sampler()
    before.set_epoch(3)
    train(before, before.batches(), 2)
    ours = sampler()
    ours.load_state_dict(before.state_dict())
    with pytest.warns(UserWarning, match=rf"loaded in epoch 3, and is set back to epoch {3 - behind} before a step"):
        ours.set_epoch(3 - behind)


def test_epochs_may_go_back_where_nothing_was_loaded() -> None:
    ours = sampler()
    ours.set_epoch(3)
    train(ours, ours.batches(), 2)
    ours.set_epoch(0)
    assert train(ours, ours.batches(), 2) == 2
    ours.load_state_dict(ours.state_dict())
    train(ours, ours.batches(), 2)
    ours.set_epoch(0, start_index=0)
    assert ours.steps_left == STEPS
