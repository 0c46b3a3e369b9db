from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import permutations
from math import factorial, sqrt

import numpy as np
import pytest

from elastic_torch.data.permutation import Order

pytestmark = pytest.mark.timeout(600)  # they take a few seconds on an idle core


def order(length: int, *, seed: int = 0, epoch: int = 0) -> list[int]:
    return list(Order(length, seed, epoch).at(np.arange(length)).tolist())


@pytest.mark.parametrize("length", [*range(1, 70), 127, 128, 129, 1000, 4096, 4097, 100_003])
def test_an_order_has_every_sample_once(length: int) -> None:
    assert sorted(order(length, seed=length)) == list(range(length))


def test_an_order_never_changes() -> None:
    """A state or a log of an older version means the same samples. Who changes this changes the name."""
    assert order(10) == [8, 6, 0, 7, 9, 5, 3, 2, 4, 1]
    assert Order(1000003, 7, 3).at(np.array([0, 1, 2, 999999])).tolist() == [89021, 531145, 170331, 927668]
    assert Order(10, 0, 0).name == "feistel-1"


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    seen = {tuple(order(50, seed=seed, epoch=epoch)) for seed in (-1, 0, 1, 2**70) for epoch in range(5)}
    assert len(seen) == 20


def test_without_shuffling_samples_come_as_the_dataset_has_them() -> None:
    assert Order(5, 1, 2, shuffle=False).at(np.arange(5)).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("length", [3, 4, 5])
def test_every_permutation_is_as_likely_as_any_other(length: int) -> None:
    tries = 20 * factorial(length)
    counts = Counter(tuple(order(length, seed=seed)) for seed in range(tries))
    assert _deviation([counts[p] for p in permutations(range(length))]) < 4


def test_every_sample_is_as_likely_at_every_place_and_after_every_other() -> None:
    length, tries = 12, 1000
    places, steps = np.zeros((length, length)), np.zeros(length)
    for seed in range(tries):
        found = Order(length, seed, 1).at(np.arange(length))
        places[np.arange(length), found] += 1
        steps += np.bincount((found[1:] - found[:-1]) % length, minlength=length)
    assert _deviation(places.ravel().tolist(), freedom=(length - 1) ** 2) < 4
    assert _deviation(steps[1:].tolist()) < 4


def test_a_part_of_a_huge_order_costs_what_the_part_costs() -> None:
    huge = Order(10**12, 0, 0)
    tracemalloc.start()
    try:
        found = huge.at(np.arange(10**11, 10**11 + 1000))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert len(set(found.tolist())) == 1000
    assert found.min() >= 0
    assert found.max() < 10**12


def _deviation(counts: list[float], freedom: int | None = None) -> float:
    """Return by how many standard deviations chi square is above its value for equal chances."""
    expected = sum(counts) / len(counts)
    freedom = freedom or len(counts) - 1
    return (sum((count - expected) ** 2 / expected for count in counts) - freedom) / sqrt(2 * freedom)
