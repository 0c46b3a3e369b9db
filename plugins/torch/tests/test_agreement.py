"""Which state all go on from, as a table of who has what."""

from __future__ import annotations

import pytest

from elastic_torch.agreement import Checkpoint, Offer, Tier, choose
from elastic_torch.stamp import Stamp

RUN, OTHER = 1, 2


def has(*stamps: tuple[int, int], disk: tuple[int, int, int] | None = None) -> Offer:
    """An offer of snapshots (round, step), and of a checkpoint (run, round, step)."""
    checkpoint = None if disk is None else Checkpoint(disk[0], Stamp(*disk[1:]))
    return Offer(tuple(Stamp(*stamp) for stamp in stamps), checkpoint)


MEMORY, PEER, DISK = Tier.MEMORY, Tier.PEER, Tier.DISK


@pytest.mark.parametrize(
    ("offers", "stamp", "tiers"),
    [
        pytest.param([has((1, 5), (1, 4))] * 2, (1, 5), [MEMORY] * 2, id="all have the same"),
        pytest.param([has((1, 5), (1, 4)), has((1, 4), (1, 3))], (1, 4), [MEMORY] * 2, id="one was ahead"),
        pytest.param([has((1, 5)), has((1, 4))], (1, 5), [MEMORY, PEER], id="none in common"),
        pytest.param([has((1, 5), (1, 4)), has()], (1, 5), [MEMORY, PEER], id="a newcomer"),
        pytest.param([has(), has((1, 5))], (1, 5), [PEER, MEMORY], id="the newcomer is first"),
        pytest.param(
            [has((1, 5), (1, 4)), has((1, 4)), has()], (1, 4), [MEMORY, MEMORY, PEER], id="survivors agree first"
        ),
        pytest.param([has((2, 5), (1, 4)), has((1, 5), (1, 4))], (1, 4), [MEMORY] * 2, id="a lost round's step"),
        pytest.param([has((9, 3), (9, 2)), has((4, 7), (4, 6))], (9, 3), [MEMORY, PEER], id="who was away"),
        pytest.param([has(disk=(RUN, 1, 5))] * 2, (1, 5), [DISK] * 2, id="checkpoints alone"),
        pytest.param([has(disk=(RUN, 1, 5)), has(disk=(RUN, 1, 3))], (1, 5), [DISK, PEER], id="folders of nodes"),
        pytest.param([has(), has(disk=(OTHER, 1, 3))], (1, 3), [PEER, DISK], id="of the run before"),
        pytest.param(
            [has(disk=(OTHER, 9, 9)), has(disk=(RUN, 1, 2))], (1, 2), [PEER, DISK], id="this run's goes before"
        ),
        pytest.param([has((1, 5), disk=(RUN, 1, 5))] * 2, (1, 5), [MEMORY] * 2, id="memory is nearer"),
        pytest.param([has((1, 5), disk=(OTHER, 7, 9))] * 2, (1, 5), [MEMORY] * 2, id="another run's is older"),
        pytest.param([has((1, 5), disk=(RUN, 1, 8))] * 2, (1, 8), [DISK] * 2, id="the checkpoint is newer"),
    ],
)
def test_all_go_on_from_the_newest_that_is_complete(
    offers: list[Offer], stamp: tuple[int, int], tiers: list[Tier]
) -> None:
    choice = choose(offers, RUN)
    assert choice is not None
    assert choice.stamp == Stamp(*stamp)
    assert [choice.tier(rank) for rank in range(len(offers))] == tiers
    assert choice.source == next(rank for rank, tier in enumerate(tiers) if tier is not PEER)


def test_nothing_is_nothing() -> None:
    assert choose([has(), has()], RUN) is None
