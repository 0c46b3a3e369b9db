from __future__ import annotations

import random

import pytest

from elastic_torch.data.partition import loss_weight, share, step_size, steps_left


@pytest.mark.parametrize(
    ("cursor", "drop_last", "size", "left"),
    [
        (0, False, 4, 3),
        (4, False, 4, 2),
        (8, False, 2, 1),  # the tail
        (10, False, 0, 0),
        (0, True, 4, 2),
        (4, True, 4, 1),
        (8, True, 0, 0),
        (5, True, 4, 1),  # a cursor that another batch size has led to
        (5, False, 4, 2),
    ],
)
def test_a_step_takes_a_batch_and_the_tail_what_is_left(cursor: int, drop_last: bool, size: int, left: int) -> None:
    assert step_size(cursor, length=10, global_batch_size=4, drop_last=drop_last) == size
    assert steps_left(cursor, length=10, global_batch_size=4, drop_last=drop_last) == left


@pytest.mark.parametrize(
    ("start", "stop", "world_size", "shares"),
    [
        (0, 6, 3, [(0, 2), (2, 4), (4, 6)]),
        (10, 18, 3, [(10, 13), (13, 16), (16, 18)]),
        (7, 9, 4, [(7, 8), (8, 9), (9, 9), (9, 9)]),
        (5, 9, 1, [(5, 9)]),
    ],
)
def test_shares_are_contiguous_and_the_first_ones_larger(
    start: int, stop: int, world_size: int, shares: list[tuple[int, int]]
) -> None:
    parts = [share(start, stop, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert [(part.start, part.stop) for part in parts] == shares


def test_shares_partition_every_step_evenly() -> None:
    lots = random.Random(0)
    for _ in range(2000):
        start, size, world_size = lots.randrange(10**9), lots.randrange(1, 2000), lots.randrange(1, 300)
        parts = [share(start, start + size, rank=rank, world_size=world_size) for rank in range(world_size)]
        assert [place for part in parts for place in part] == list(range(start, start + size))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_weighted_mean_of_means_is_the_mean_of_all() -> None:
    lots = random.Random(1)
    for _ in range(500):
        losses = [lots.random() for _ in range(lots.randrange(1, 100))]
        world_size = lots.randrange(1, 12)
        weighted = []
        for rank in range(world_size):
            own = [losses[place] for place in share(0, len(losses), rank=rank, world_size=world_size)]
            mean = sum(own) / len(own) if own else 123.0  # a stand-in's
            weighted.append(loss_weight(len(own), len(losses), world_size) * mean)
        assert sum(weighted) / world_size == pytest.approx(sum(losses) / len(losses))
