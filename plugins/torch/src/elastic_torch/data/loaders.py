"""Checks and facts of the loader from which a training loop draws its batches."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, TypeGuard, TypeVar, cast

from torch.utils.data import DataLoader, IterableDataset

from elastic_core.errors import UsageError
from elastic_torch.data import sharders
from elastic_torch.data.sampler import ElasticBatchSampler, ElasticDistributedSampler

_T = TypeVar("_T")


def left(loader: Iterable[object], sampler: object) -> int | None:
    """Return the number of batches of the epoch that are left, where loader or sampler know.

    A loader's length is that of the whole epoch; a sampler that knows how far it is may have ``steps_left``.
    """
    try:
        whole = len(loader)  # type: ignore[arg-type]  # it may have one
    except (TypeError, NotImplementedError, AttributeError):
        return None
    steps = getattr(sampler, "steps_left", None)
    return min(whole, steps) if isinstance(steps, int) else whole


def check_sampler(loader: object, sampler: object, epoch: int) -> None:
    """Refuse, by UsageError, a loader that draws with an elastic sampler which is not the state's ``sampler``.

    The state would not advance it, so that it would begin each epoch anew after a restart. Refuse likewise one that is
    in another epoch than the state, since a restart would repeat epochs, and a loader that is sharded once more after
    the sampler, since samples would be used by no rank.
    """
    check_epoch(sampler, epoch)
    found = sharders.found_in(loader, _is_elastic)
    if found and not any(drawn is sampler for drawn in found):
        raise UsageError(
            "The loader draws with an ElasticDistributedSampler that the TrainState does not know.",
            hint="Give it the same one: TrainState(..., sampler=sampler).",
        )
    sharders.refuse_loader(loader, _is_elastic)


def check_epoch(sampler: object, epoch: int) -> None:
    """Refuse an elastic sampler that is in another epoch than the state; raise UsageError if it is."""
    if isinstance(sampler, ElasticDistributedSampler) and sampler.epoch != epoch:
        raise UsageError(
            f"The sampler is in epoch {sampler.epoch}, and the TrainState in epoch {epoch}.",
            hint="Loop over state.epochs(count): it sets both.",
        )


@contextlib.contextmanager
def held(sampler: object) -> Iterator[None]:
    """Draw within this: an elastic sampler stays in its epoch.

    Fabric's and Accelerate's loaders set it, when they begin, to the number of epochs that this process has begun:
    after a restart that is another one than the epoch in progress.
    """
    if not isinstance(sampler, ElasticDistributedSampler):
        yield
        return
    sampler.is_driven = sampler.epoch_is_held = True
    try:
        yield
    finally:
        sampler.epoch_is_held = False


def drawn(iterator: Iterator[_T], sampler: object, epoch: int) -> Iterator[_T]:
    """Yield what a loader gives; see to it that an elastic sampler stays in the epoch and is read to its end.

    Raises:
        UsageError: The sampler is in another epoch by now.
        EpochNotReadError: The loader has ended, and did not give all that was drawn for it.
    """
    end = object()
    while True:
        with held(sampler):
            batch = next(iterator, end)
        if batch is end:
            break
        check_epoch(sampler, epoch)
        yield cast(_T, batch)
    if isinstance(sampler, ElasticDistributedSampler):
        sampler.check_read(ended=True)


def is_stateful(thing: object) -> TypeGuard[DataLoader[Any]]:
    """Return True if it is a ``DataLoader`` that knows its position, as torchdata's ``StatefulDataLoader``."""
    return isinstance(thing, DataLoader) and hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def counts_twice(thing: object) -> bool:
    """Return True if it is a loader of a dataset without a state that can only be iterated.

    torchdata 0.11 counts the fast-forwarded samples twice in such a loader's state. So the loader is drawn anew from
    the epoch's beginning, as a loader without a state is.
    """
    return (
        is_stateful(thing)
        and isinstance(dataset := thing.dataset, IterableDataset)
        and not hasattr(dataset, "state_dict")
    )


def draws_elastically(loader: object) -> bool:
    """Return True if a loader itself draws with an elastic sampler."""
    drawn = [getattr(loader, name, None) for name in ("batch_sampler", "sampler")]
    return any(isinstance(each, ElasticBatchSampler | ElasticDistributedSampler) for each in drawn)


def _is_elastic(thing: object) -> bool:
    return isinstance(thing, ElasticDistributedSampler)


def refuse_other_ranks(epoch: int, batches: int, before: int, now: int, *, exact: bool) -> None:
    """Refuse (UsageError), or warn, that an epoch goes on with other ranks than the loader's position is of."""
    what = (
        f"Epoch {epoch} is to go on with {now} rank(s) after {batches} batches of {before}, and the loader's position "
        "means other samples to them: samples would be skipped or repeated."
    )
    if exact:
        raise UsageError(
            what,
            hint=f"Start with {before} ranks again; or draw with ElasticDistributedSampler, which goes on with any "
            "number; or give what is in per_rank= a method load_rank_states(states, rank, ranks); or accept it, with "
            "TrainState(exact_samples=False).",
        )
    warnings.warn(what, stacklevel=5)
