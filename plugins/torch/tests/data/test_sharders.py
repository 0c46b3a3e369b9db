"""A loader that a framework shards once more is refused before its first batch, and no other loader is.

The classes here have the names and the attributes of accelerate 1.15.0's, lightning 2.6.6's and transformers 5.24's.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from elastic_core.errors import UsageError
from elastic_torch import ElasticBatchSampler, ElasticDistributedSampler, TrainState

DATA = TensorDataset(torch.arange(64))
STEPS = 16


def sampler(ranks: int = 2) -> ElasticDistributedSampler:
    return ElasticDistributedSampler(DATA, ranks, 0, global_batch_size=4)


class BatchSamplerShard(BatchSampler):
    """accelerate.data_loader's: every W-th batch."""

    def __init__(self, batch_sampler: Iterable[list[int]], num_processes: int = 1, process_index: int = 0) -> None:
        self.batch_sampler, self.num_processes, self.process_index = batch_sampler, num_processes, process_index

    def __iter__(self) -> Iterator[list[int]]:
        for index, batch in enumerate(self.batch_sampler):
            if index % self.num_processes == self.process_index:
                yield batch

    def __len__(self) -> int:
        return len(self.batch_sampler) // self.num_processes  # type: ignore[arg-type]  # it has one


class DataLoaderShard:
    """accelerate.data_loader's: a loader around a loader, one batch ahead, which counts its own epochs."""

    def __init__(self, dataset: Any, **given: Any) -> None:
        self.base_dataloader = DataLoader(dataset, **given)
        self.iteration = 0

    def __getattr__(self, name: str) -> Any:
        if name == "base_dataloader":
            raise AttributeError
        return getattr(self.base_dataloader, name)

    @property
    def __class__(self) -> Any:
        return self.base_dataloader.__class__

    @__class__.setter
    def __class__(self, _: Any) -> None:
        raise TypeError

    def __len__(self) -> int:
        return len(self.base_dataloader)

    def __iter__(self) -> Iterator[Any]:
        for drawn in (self.batch_sampler, getattr(self.batch_sampler, "batch_sampler", None)):
            if drawn is not None and hasattr(drawn, "set_epoch"):
                drawn.set_epoch(self.iteration)
        ahead = iter(self.base_dataloader)
        current = next(ahead)
        for following in ahead:
            yield current
            current = following
        yield current
        self.iteration += 1


class DataLoaderDispatcher(DataLoaderShard):
    """accelerate.data_loader's: the first process draws for all."""

    def __init__(self, dataset: Any, num_processes: int, **given: Any) -> None:
        super().__init__(dataset, **given)
        self.state = type("PartialState", (), {"num_processes": num_processes})()


class IterableDatasetShard(IterableDataset[Any]):
    """accelerate.data_loader's, and transformers.trainer_pt_utils'."""

    def __init__(self, dataset: Any, num_processes: int = 1, process_index: int = 0) -> None:
        self.dataset, self.num_processes, self.process_index = dataset, num_processes, process_index

    def __iter__(self) -> Iterator[Any]:
        for index, element in enumerate(self.dataset):
            if index % self.num_processes == self.process_index:
                yield element


class _DatasetSamplerWrapper(Dataset[int]):
    """lightning.fabric.utilities.distributed's."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._sampler_list: list[int] | None = None

    def __getitem__(self, index: int) -> int:
        if self._sampler_list is None:
            self._sampler_list = list(self._sampler)
        return self._sampler_list[index]

    def __len__(self) -> int:
        return len(self._sampler)

    def reset(self) -> None:
        self._sampler_list = list(self._sampler)


class DistributedSamplerWrapper(DistributedSampler[int]):
    """lightning.fabric.utilities.distributed's."""

    def __init__(self, sampler: Any, ranks: int) -> None:
        super().__init__(_DatasetSamplerWrapper(sampler), ranks, 0, shuffle=False)

    def __iter__(self) -> Iterator[int]:
        self.dataset.reset()  # type: ignore[attr-defined]  # the wrapper's
        return (self.dataset[index] for index in super().__iter__())


class _FabricDataLoader:
    """lightning.fabric.wrappers': takes the loader's attributes over, and counts its own epochs."""

    def __init__(self, dataloader: Any) -> None:
        self.__dict__.update(dataloader.__dict__)
        self._dataloader, self._num_iter_calls = dataloader, 0

    def __len__(self) -> int:
        return len(self._dataloader)

    def __iter__(self) -> Iterator[Any]:
        self._dataloader.batch_sampler.sampler.set_epoch(self._num_iter_calls)
        self._num_iter_calls += 1
        yield from self._dataloader


class Around:
    """A user's own wrapper."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.__loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self.__loader


class Slots:
    """Another one, without a dict."""

    __slots__ = ("inner", "unset")

    def __init__(self, loader: Iterable[Any]) -> None:
        self.inner = [loader]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner[0])


class Opaque:
    """One whose attributes do not lead to its loader."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.begin: Callable[[], Iterator[Any]] = lambda: iter(loader)

    def __iter__(self) -> Iterator[Any]:
        return self.begin()


class Prefetcher:
    """A thread that reads some batches ahead."""

    def __init__(self, loader: Iterable[Any], ahead: int = 3) -> None:
        self.loader, self.ahead = loader, ahead

    def __iter__(self) -> Iterator[Any]:
        ready: queue.Queue[Any] = queue.Queue(self.ahead)
        end = object()

        def read() -> None:
            for batch in self.loader:
                ready.put(batch)
            ready.put(end)

        threading.Thread(target=read, daemon=True).start()
        return iter(ready.get, end)


def sharded_batches(ours: ElasticDistributedSampler, ranks: int) -> Any:
    return DataLoaderShard(DATA, batch_sampler=BatchSamplerShard(ours.batches(), ranks))


def sharded_samples(ours: ElasticDistributedSampler, ranks: int) -> Any:
    inner = DataLoader(DATA, sampler=ours, batch_size=ours.batch_size).batch_sampler
    assert inner is not None
    return DataLoaderShard(DATA, batch_sampler=BatchSamplerShard(inner, ranks))


def dispatched(ours: ElasticDistributedSampler, ranks: int) -> Any:
    return DataLoaderDispatcher(DATA, ranks, batch_sampler=ours.batches())


def sharded_stream(ours: ElasticDistributedSampler, ranks: int) -> Any:
    class Stream(IterableDataset[int]):
        def __init__(self) -> None:
            self.drawn_from = ours

        def __iter__(self) -> Iterator[int]:
            return iter(self.drawn_from)

    return DataLoader(IterableDatasetShard(Stream(), ranks), batch_size=ours.batch_size)


def wrapped_sampler(ours: ElasticDistributedSampler, ranks: int) -> Any:
    return DataLoader(DATA, sampler=DistributedSamplerWrapper(ours, ranks), batch_size=ours.batch_size)


SHARDED = [
    (sharded_batches, "BatchSamplerShard"),
    (sharded_samples, "BatchSamplerShard"),
    (dispatched, "DataLoaderDispatcher"),
    (sharded_stream, "IterableDatasetShard"),
    (wrapped_sampler, "DistributedSamplerWrapper"),
]
WRAPPED: list[Callable[[Any], Any]] = [
    lambda loader: loader,
    Around,
    Slots,
    lambda loader: Around(Slots(Around(loader))),
]


@pytest.mark.parametrize("wrap", WRAPPED)
@pytest.mark.parametrize(("make", "by"), SHARDED)
def test_a_loader_that_is_sharded_once_more_is_refused_before_it_draws(
    make: Callable[..., Any], by: str, wrap: Callable[[Any], Any]
) -> None:
    ours = sampler()
    state = TrainState(model=nn.Linear(1, 1), sampler=ours)
    with pytest.raises(UsageError, match=rf"is sharded once more, by {by} .* among 2 ranks"):
        next(state.batches(wrap(make(ours, 2))))
    assert ours._reading is None


@pytest.mark.parametrize("wrap", [Opaque, lambda loader: (batch for batch in loader)], ids=["attributes", "generator"])
@pytest.mark.parametrize(("make", "by"), SHARDED)
@pytest.mark.parametrize("with_state", [True, False])
def test_so_is_one_behind_a_wrapper_that_hides_it_when_it_draws_first(
    make: Callable[..., Any], by: str, wrap: Callable[[Any], Any], with_state: bool
) -> None:
    ours = sampler()
    loader = wrap(make(ours, 2))
    if with_state:
        loader = TrainState(model=nn.Linear(1, 1), sampler=ours).batches(loader)
    with pytest.raises(UsageError, match=rf"is sharded once more, by {by} .* among 2 ranks"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("accelerate.data_loader", "Leave the loader out of accelerator.prepare"),
        ("lightning.fabric.utilities.distributed", "use_distributed_sampler=False"),
        ("lightning_fabric.utilities.distributed", "use_distributed_sampler=False"),
        ("transformers.trainer_pt_utils", "get_train_dataloader"),
        ("mine", "Take BatchSamplerShard away"),
    ],
)
def test_the_line_to_change_is_named(monkeypatch: pytest.MonkeyPatch, module: str, line: str) -> None:
    monkeypatch.setattr(BatchSamplerShard, "__module__", module)
    ours = sampler()
    with pytest.raises(UsageError, match=line):
        next(TrainState(model=nn.Linear(1, 1), sampler=ours).batches(sharded_batches(ours, 2)))


def test_a_sampler_that_a_framework_puts_in_the_place_of_ours_is_refused() -> None:
    theirs: Any = DistributedSampler(DATA, 2, 0)
    with pytest.raises(UsageError, match="A DistributedSampler of torch was put in the place") as told:
        ElasticBatchSampler(theirs, batch_size=2, drop_last=False)
    assert "use_distributed_sampler=False" in str(told.value)
    again = ElasticBatchSampler(sampler(), batch_size=2, drop_last=False)
    assert len(again) == STEPS


# Loaders that must not be refused -----------------------------------------------------------------------------------


class Trick(DistributedSampler[int]):
    """One that frameworks leave alone, for its class; it draws as the sampler in it does."""

    def __init__(self, inner: ElasticDistributedSampler) -> None:
        super().__init__(DATA, 2, 0)
        self.inner = inner

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner)


class Mimic(BatchSampler):
    """A user's batch sampler with the attributes of one that shards."""

    def __init__(self, inner: ElasticBatchSampler) -> None:
        self.inner, self.num_replicas, self.rank, self.num_processes = inner, 2, 0, 2

    def __iter__(self) -> Iterator[list[int]]:
        return (list(reversed(batch)) for batch in self.inner)

    def __len__(self) -> int:
        return len(self.inner)


class Holder:
    """A wrapper that knows loaders of others, which are sharded, and that of an evaluation."""

    def __init__(self, loader: Any, ours: ElasticDistributedSampler) -> None:
        self.loader, self.validation = loader, DataLoader(DATA, batch_sampler=sampler().batches())
        self.old = sharded_batches(ours, 2)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def direct(ours: ElasticDistributedSampler) -> Any:
    return DataLoader(DATA, batch_sampler=ours.batches())


HEALTHY: dict[str, Callable[[ElasticDistributedSampler], Any]] = {
    "plain": direct,
    "samples": lambda ours: DataLoader(DATA, sampler=ours, batch_size=ours.batch_size),
    "no automatic batches": lambda ours: DataLoader(DATA, sampler=ours.batches(), batch_size=None),
    "workers": lambda ours: DataLoader(DATA, batch_sampler=ours.batches(), num_workers=2),
    "stateful": lambda ours: StatefulDataLoader(DATA, batch_sampler=ours.batches()),
    "stateful workers": lambda ours: StatefulDataLoader(DATA, batch_sampler=ours.batches(), num_workers=2),
    "around": lambda ours: Around(Slots(direct(ours))),
    "opaque": lambda ours: Opaque(direct(ours)),
    "generator": lambda ours: (batch for batch in direct(ours)),
    "map": lambda ours: map(list, direct(ours)),
    "prefetcher": lambda ours: Prefetcher(direct(ours)),
    "prefetcher of all": lambda ours: Prefetcher(direct(ours), 99),
    "the batch sampler alone": lambda ours: ours.batches(),
    "accelerate, one process": lambda ours: sharded_batches(ours, 1),
    "dispatcher, one process": lambda ours: dispatched(ours, 1),
    "lightning, one process": lambda ours: wrapped_sampler(ours, 1),
    "fabric": lambda ours: _FabricDataLoader(direct(ours)),
    "trick": lambda ours: DataLoader(DATA, sampler=Trick(ours), batch_size=ours.batch_size),
    "mimic": lambda ours: DataLoader(DATA, batch_sampler=Mimic(ours.batches())),
    "holder": lambda ours: Holder(direct(ours), ours),
}


def quiet(test: Any) -> Any:
    """Ignore what torch says of a loader's workers, and of torchdata."""
    fork = "ignore:.*multi-threaded, use of fork:DeprecationWarning"
    return pytest.mark.filterwarnings(fork)(pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")(test))


@quiet
@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_loaders_are_read_to_the_end_of_each_epoch(kind: str) -> None:
    ours = sampler()
    state = TrainState(model=nn.Linear(1, 1), sampler=ours)
    for _ in state.epochs(2):
        for _ in state.batches(HEALTHY[kind](ours)):
            pass
        assert ours.epoch_is_over
    assert state.step == 2 * STEPS


@quiet
@pytest.mark.parametrize("kind", HEALTHY)
@pytest.mark.parametrize("most", [1, 3, STEPS - 3])
def test_a_loop_that_leaves_an_epoch_early_is_no_error(kind: str, most: int) -> None:
    ours = sampler()
    state = TrainState(model=nn.Linear(1, 1), sampler=ours)
    for _ in state.epochs(2):
        for done, _ in enumerate(state.batches(HEALTHY[kind](ours))):
            if done == most:
                break


@quiet
@pytest.mark.filterwarnings("ignore:The loader ended after:UserWarning")
@pytest.mark.parametrize("kind", HEALTHY)
@pytest.mark.parametrize("most", [1, 2, 5, STEPS - 2])
def test_a_loader_that_is_cut_short_is_no_error(kind: str, most: int) -> None:
    ours = sampler()
    state = TrainState(model=nn.Linear(1, 1), sampler=ours)
    for _ in state.epochs(2):
        for _ in state.batches(itertools.islice(HEALTHY[kind](ours), most)):
            pass
    assert state.step == 2 * most


@pytest.mark.parametrize("kind", ["fabric", "accelerate, one process"])
def test_a_loader_that_counts_its_own_epochs_goes_on_in_that_of_the_state(kind: str) -> None:
    ours = sampler()
    first = TrainState(model=nn.Linear(1, 1), sampler=ours)
    loader = HEALTHY[kind](ours)
    for epoch in first.epochs(2):
        for done, _ in enumerate(first.batches(loader)):
            if epoch == 1 and done == 5:
                kept = first.state_dict()
    again = sampler()
    second = TrainState(model=nn.Linear(1, 1), sampler=again)
    second.load_state_dict(kept)
    seen = []
    for _ in second.epochs(2):
        seen += [batch for (batch,) in second.batches(HEALTHY[kind](again))]
    assert len(seen) == STEPS - 5
    assert (second.epoch, second.step) == (2, 2 * STEPS)


def test_a_sampler_of_another_loader_nearby_is_not_taken_for_the_states() -> None:
    ours, other = sampler(), sampler()
    state = TrainState(model=nn.Linear(1, 1), sampler=ours)
    with pytest.raises(UsageError, match="that the TrainState does not know"):
        next(state.batches(Around(direct(other))))


def test_a_sharded_loader_that_does_not_draw_elastically_is_no_concern() -> None:
    batches = BatchSampler(SequentialSampler(DATA), 4, drop_last=False)
    theirs: list[Any] = [
        DataLoaderShard(DATA, batch_sampler=BatchSamplerShard(batches, 2)),
        DataLoader(DATA, batch_size=4, sampler=DistributedSampler(DATA, 2, 0)),
        DataLoader(DATA, batch_size=4, sampler=DistributedSamplerWrapper(SequentialSampler(DATA), 2)),
    ]
    for loader in theirs:
        assert len(list(TrainState(model=nn.Linear(1, 1)).batches(loader))) == STEPS // 2
