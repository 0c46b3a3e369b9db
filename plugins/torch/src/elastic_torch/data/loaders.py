"""Checks and facts of the loader from which a training loop draws its batches."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, TypeGuard

from torch.utils.data import DataLoader, IterableDataset

from elastic_core.errors import UsageError
from elastic_torch.data.sampler import ElasticBatchSampler, ElasticDistributedSampler


def length(loader: Iterable[object]) -> int | None:
    """How many batches it has, where it knows."""
    try:
        return len(loader)  # type: ignore[arg-type]  # it may have one
    except (TypeError, NotImplementedError):
        return None


def check_sampler(loader: object, sampler: object, epoch: int) -> None:
    """Refuse an elastic sampler that the state does not advance: it would begin each epoch anew after a restart.

    Refuse one that is in another epoch than the state: a restart would repeat epochs.

    Raises:
        UsageError: The loader draws with one that is not ``sampler``, or that is not in this epoch.
    """
    if isinstance(sampler, ElasticDistributedSampler) and sampler.epoch != epoch:
        raise UsageError(
            f"The sampler is in epoch {sampler.epoch}, and the TrainState in epoch {epoch}.",
            hint="Loop over state.epochs(count): it sets both.",
        )
    for name in ("batch_sampler", "sampler"):
        drawn = getattr(loader, name, None)
        drawn = drawn.sampler if isinstance(drawn, ElasticBatchSampler) else drawn
        if isinstance(drawn, ElasticDistributedSampler) and drawn is not sampler:
            raise UsageError(
                "The loader draws with an ElasticDistributedSampler that the TrainState does not know.",
                hint="Give it the same one: TrainState(..., sampler=sampler).",
            )


def is_stateful(thing: object) -> TypeGuard[DataLoader[Any]]:
    """Whether it is a ``DataLoader`` that knows how far it is, as torchdata's ``StatefulDataLoader``."""
    return isinstance(thing, DataLoader) and hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def counts_twice(thing: object) -> bool:
    """Whether it is a loader of a dataset without a state that can only be iterated.

    torchdata fast-forwards such a one, and then its state counts what was drawn for that once more (0.11). It is drawn
    anew from the epoch's beginning, as a loader without a state is.
    """
    return (
        is_stateful(thing)
        and isinstance(dataset := thing.dataset, IterableDataset)
        and not hasattr(dataset, "state_dict")
    )


def draws_elastically(loader: object) -> bool:
    """Whether a loader draws with an elastic sampler."""
    drawn = [getattr(loader, name, None) for name in ("batch_sampler", "sampler")]
    return any(isinstance(each, ElasticBatchSampler | ElasticDistributedSampler) for each in drawn)


def refuse_other_ranks(epoch: int, batches: int, before: int, now: int, *, exact: bool) -> None:
    """Refuse, or warn, that an epoch goes on with another number of ranks than the loader's position is of.

    Raises:
        UsageError: Each sample is to be used once.
    """
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
