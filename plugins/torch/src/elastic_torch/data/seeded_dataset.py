"""A dataset whose random numbers belong to the sample, and not to the worker that happens to make it."""

from __future__ import annotations

import random
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

_T = TypeVar("_T")


class SeededDataset(Dataset[_T]):
    """Another dataset, each of whose samples is made with random generators seeded from (seed, epoch, index).

    The workers of a ``DataLoader`` have generators of their own, and which worker makes which sample changes with a
    restart. With this, an augmentation is the same before and after, for any number of workers and ranks. torch's
    generator for the CPU, Python's and numpy's are seeded; where there are no workers, those of the training are put
    back after each sample.

    ``TrainState.batches`` calls :meth:`set_epoch`; other loops call it before each epoch's iteration.
    """

    def __init__(self, dataset: Dataset[_T], seed: int = 0) -> None:
        self.dataset, self.seed = dataset, seed
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # for workers that stay (persistent_workers)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch."""
        self._epoch[0] = epoch

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # it has one

    def __getitem__(self, index: Any) -> _T:
        """Return a sample, made with its own random numbers."""
        here = get_worker_info() is None
        before = (torch.get_rng_state(), random.getstate(), np.random.get_state()) if here else None
        seeds = np.random.SeedSequence([self.seed % 2**64, int(self._epoch), int(index)]).generate_state(3).tolist()
        torch.default_generator.manual_seed(seeds[0])
        random.seed(seeds[1])
        np.random.seed(seeds[2])
        try:
            return self.dataset[index]
        finally:
            if before is not None:
                torch.set_rng_state(before[0])
                random.setstate(before[1])
                np.random.set_state(before[2])
