"""The iterator of an epoch's loader: at the first batch that is left, with the random numbers as they were then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from elastic_torch.data import loaders
from elastic_torch.data.seeded_dataset import SeededDataset
from elastic_torch.state.components import Components
from elastic_torch.state.per_rank import PerRank
from elastic_torch.state.rng import Generators
from elastic_torch.state.state_exchange import Peers

_T = TypeVar("_T")


class EpochStart:
    """Makes the iterators of loaders, at the start of an epoch and where one is resumed.

    Args:
        sampler: What the loaders draw with.
        common: What is the same on all ranks.
        own: What this rank has of its own; a loader with a state is among it.
        generators: This rank's random generators.
        peers: All ranks.
        exact: Whether an epoch that cannot go on with another number of ranks is refused.
    """

    def __init__(
        self,
        sampler: Any,
        common: Components,
        own: PerRank,
        generators: Generators,
        peers: Peers,
        *,
        exact: bool,
    ) -> None:
        self._sampler, self._common, self._own = sampler, common, own
        self._generators, self._peers, self._exact = generators, peers, exact

    def begin(
        self,
        loader: Iterable[_T],
        epoch: int,
        *,
        resumed_after: int,
        ranks: int,
        epoch_is_over: bool,
        loader_has_ended: bool,
    ) -> tuple[Iterator[_T], int | None]:
        """Return the loader's iterator; and how many batches are left, where the loader has a length.

        Args:
            loader: The loader.
            epoch: The epoch's number.
            resumed_after: Batches of it that are done, where it is resumed from a restored state; else 0.
            ranks: How many ranks have done them.
            epoch_is_over: Whether they are all of the epoch's.
            loader_has_ended: Whether the state was kept after the loader had said so.

        Raises:
            UsageError: The loader draws with an elastic sampler that is not the state's, or is in another epoch; or its
                state is restored twice; or its position means other samples to this number of ranks.
        """
        loaders.check_sampler(loader, self._sampler, epoch)
        own = self._own.restores(loader, self._common.extra)
        if isinstance(data := getattr(loader, "dataset", None), SeededDataset):
            data.set_epoch(epoch)
        resumed, world = resumed_after > 0, self._peers.world
        # A loader that goes on from its last batch ends at once; one that goes on from its end begins an epoch.
        over = resumed and epoch_is_over and (loader_has_ended or not own)
        if resumed and not over and ranks != world and not (own or self._goes_on(loader)):
            loaders.refuse_other_ranks(epoch, resumed_after, ranks, world, exact=self._exact)
        with self._generators.at_epoch_start(resumed=resumed):
            left, iterator = (0, iter(())) if over else (loaders.length(loader), iter(loader))
            if resumed and not over and not self._common.sampler_knows:
                if not own:
                    loaders.skip(iterator, resumed_after)
                left = None if left is None else left - resumed_after
        return iterator, left

    def _goes_on(self, loader: object) -> bool:
        """Whether the loader's position means the same samples to any number of ranks."""
        elastic = loaders.goes_on_with_any_ranks(self._sampler)
        return elastic and (loader is self._sampler or self._common.sampler_knows)
