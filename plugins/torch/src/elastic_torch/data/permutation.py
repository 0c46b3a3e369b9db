"""The order in which an epoch takes its samples: a function of seed and epoch, computed where it is needed.

The sample at each place comes from a keyed bijection of the places, not from a list that was shuffled: a Feistel
network of 24 rounds over the bits of a place, walked on until the result is a place again. It is integer arithmetic
alone, so the order is the same for any world size, machine and version of torch or numpy. Both of theirs may change
with a version (``torch.randperm``, ``numpy.random.Generator.permutation``; NEP 19), and both take the whole list.

What it costs: memory for the places that are asked for, whatever the epoch's length, and no time before the first one.
(``DistributedSampler`` makes a list of all samples on each rank at the start of an epoch: some 40 bytes a sample, 4 GB
for 1e8 of them.) Each place takes fewer than two runs through the network on average: half a microsecond on one core.

Sources: Luby, Rackoff, "How to construct pseudorandom permutations from pseudorandom functions" (1988); Black, Rogaway,
"Ciphers with arbitrary finite domains" (2002), for the walk; Mitchell, Stokes, Frank, Holmes, "Bandwidth-optimal random
shuffling for GPUs" (2022), who shuffle so and measure how many rounds it takes; Steele, Lea, Flood, "Fast splittable
pseudorandom number generators" (2014), for :func:`_mixed`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

SHUFFLED, IN_ORDER = "feistel-1", "sequential"
"""Names of the orders, as records and states hold them. Whatever changes an order changes its name."""
ROUNDS = 24

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Order:
    """The order of one epoch."""

    length: int  # samples in the epoch
    seed: int  # any integer, the same on all ranks
    epoch: int  # its number. (seed 0, epoch 1) and (seed 1, epoch 0) are different orders, other than torch's
    shuffle: bool = True  # whether it is shuffled; else samples come as the dataset has them

    @property
    def name(self) -> str:
        """The name of the method that makes the order."""
        return SHUFFLED if self.shuffle else IN_ORDER

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples, indices of the dataset, at these places, from 0 to ``length - 1``; both of shape (n,)."""
        if not self.shuffle:
            return places
        samples = self._network(places.astype(np.uint64))
        outside = np.flatnonzero(samples >= self.length)
        while outside.size:
            samples[outside] = self._network(samples[outside])
            outside = outside[samples[outside] >= self.length]
        return samples.astype(np.int64)

    @cached_property
    def _keys(self) -> Words:
        text = f"elastic {SHUFFLED}: seed {self.seed}, epoch {self.epoch}"
        return np.frombuffer(hashlib.shake_256(text.encode()).digest(8 * ROUNDS), dtype="<u8").astype(np.uint64)

    def _network(self, words: Words) -> Words:
        """Return a bijection of all words of as many bits as a place has; each half is changed by the other one."""
        bits = max(2, (self.length - 1).bit_length())
        low_bits = np.uint64(bits - bits // 2)
        low_mask, high_mask = (np.uint64((1 << size) - 1) for size in (bits - bits // 2, bits // 2))
        low, high = words & low_mask, words >> low_bits
        for even, odd in self._keys.reshape(-1, 2):
            high ^= _mixed(low ^ even) & high_mask
            low ^= _mixed(high ^ odd) & low_mask
        return (high << low_bits) | low


def _mixed(words: Words) -> Words:
    """Return words of which each bit depends on every bit before (SplitMix64's finalizer); changes ``words``."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
