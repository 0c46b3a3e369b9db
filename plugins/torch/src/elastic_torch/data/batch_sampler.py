"""One rank's part of each step, in the form in which a ``DataLoader`` and frameworks take batches."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import BatchSampler

from elastic_core.errors import UsageError
from elastic_torch.data import sharders
from elastic_torch.data.sampler import ElasticDistributedSampler


class ElasticBatchSampler(BatchSampler):
    """One rank's part of each step: what a ``DataLoader`` takes as ``batch_sampler``.

    Its batches may differ in size by one between ranks; see :class:`ElasticDistributedSampler`.

    Args:
        sampler: The sampler, whose ``batches()`` makes this.
        batch_size: Not used: frameworks that make a batch sampler anew give it. It is the sampler's.
        drop_last: Likewise.

    Raises:
        UsageError: A framework has put another sampler in the place of the elastic one.
    """

    sampler: ElasticDistributedSampler

    def __init__(
        self, sampler: ElasticDistributedSampler, batch_size: int | None = None, drop_last: bool | None = None
    ) -> None:
        if not isinstance(sampler, ElasticDistributedSampler):
            package = sharders.package_of(sampler)
            raise UsageError(
                f"A {type(sampler).__name__} of {package} was put in the place of the ElasticDistributedSampler that "
                "gives each rank its part: samples would be used twice, or by none.",
                hint="Give use_distributed_sampler=False, to Trainer(...) or fabric.setup_dataloaders(...).",
            )
        super().__init__(sampler, sampler.batch_size, sampler.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        """Return indices of the dataset for each step, from the committed position to the end of the epoch."""
        return self.sampler._batches()

    def __len__(self) -> int:
        """Return the number of steps of a whole epoch, wherever in it we are; see ``steps_left``."""
        return self.sampler.steps_in_epoch

    @property
    def steps_left(self) -> int:
        """The number of steps of the epoch that are not committed."""
        return self.sampler.steps_left

    def set_epoch(self, epoch: int, start_index: int | None = None) -> None:
        """Set the sampler's epoch, for frameworks that look for this method here."""
        self.sampler.set_epoch(epoch, start_index)
