"""What a training state has to know of the loader that its loop draws from."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator

from elastic_core.errors import UsageError
from elastic_torch.sampler import ElasticBatchSampler, ElasticDistributedSampler


def length(loader: Iterable[object]) -> int | None:
    """How many batches it has, where it knows."""
    try:
        return len(loader)  # type: ignore[arg-type]  # it may have one
    except (TypeError, NotImplementedError):
        return None


def check_sampler(loader: object, sampler: object, epoch: int) -> None:
    """An elastic sampler that nobody advances would begin each epoch anew after a restart.

    And with one that is in another epoch than the state a restart would do epochs again.

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


def skip(iterator: Iterator[object], batches: int) -> None:
    """Draw so many batches and throw them away."""
    for _ in range(batches):
        next(iterator, None)


def warn_of_other_ranks(epoch: int, batches: int, before: int, now: int) -> None:
    """A sampler that does not know how far it is goes on with another number of ranks."""
    warnings.warn(
        f"Epoch {epoch} goes on with {now} rank(s) after {batches} batches of {before}, and the sampler does not know "
        "how far it is: samples are skipped or repeated. ElasticDistributedSampler goes on with any number of ranks.",
        stacklevel=5,
    )
