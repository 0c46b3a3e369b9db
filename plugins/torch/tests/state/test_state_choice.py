"""Which snapshot all go on from, as a table of who has what."""

from __future__ import annotations

import pytest

from elastic_torch.memory.tier import Tier, choose, cut_short
from elastic_torch.version import Stamp

MEMORY, PEER = Tier.MEMORY, Tier.PEER


@pytest.mark.parametrize(
    ("offers", "stamp", "tiers"),
    [
        pytest.param([[(1, 5), (1, 4)]] * 2, (1, 5), [MEMORY] * 2, id="all have the same"),
        pytest.param([[(1, 5), (1, 4)], [(1, 4), (1, 3)]], (1, 4), [MEMORY] * 2, id="one was ahead"),
        pytest.param([[(1, 5)], [(1, 4)]], (1, 5), [MEMORY, PEER], id="none in common"),
        pytest.param([[(1, 5), (1, 4)], []], (1, 5), [MEMORY, PEER], id="a newcomer"),
        pytest.param([[], [(1, 5)]], (1, 5), [PEER, MEMORY], id="the newcomer is first"),
        pytest.param([[(1, 5), (1, 4)], [(1, 4)], []], (1, 4), [MEMORY, MEMORY, PEER], id="survivors agree first"),
        pytest.param([[(2, 5), (1, 4)], [(1, 5), (1, 4)]], (1, 4), [MEMORY] * 2, id="a lost round's step"),
        pytest.param([[(9, 3), (9, 2)], [(4, 7), (4, 6)]], (9, 3), [MEMORY, PEER], id="who was away"),
    ],
)
def test_all_go_on_from_the_newest_that_is_complete(
    offers: list[list[tuple[int, int]]], stamp: tuple[int, int], tiers: list[Tier]
) -> None:
    choice = choose([[Stamp(*pair) for pair in pairs] for pairs in offers])
    assert choice is not None
    assert choice.stamp == Stamp(*stamp)
    assert [choice.tier(rank) for rank in range(len(offers))] == tiers
    assert choice.source == tiers.index(MEMORY)


def test_nothing_is_nothing() -> None:
    assert choose([[], []]) is None


@pytest.mark.parametrize(
    ("offers", "began", "stamp"),
    [
        pytest.param([[(1, 1)], []], [None, 1], None, id="killed in the first commit"),
        pytest.param([[(1, 1)], []], [1, 1], None, id="and another one after it, before it had said so"),
        pytest.param([[(1, 1)], []], [None, None], (1, 1), id="a newcomer"),
        pytest.param([[(1, 1)], [], []], [None, 1, None], None, id="killed, and a newcomer"),
        pytest.param([[(2, 41)], []], [None, 2], None, id="the round began from disk"),
        pytest.param([[(2, 41), (1, 38)], []], [None, 2], (1, 38), id="and a newcomer had begun from disk"),
        pytest.param([[(2, 41), (1, 38)], [(1, 7)]], [None, 2], (1, 38), id="or one who had been away"),
        pytest.param([[(2, 2), (1, 1)], []], [None, 1], (2, 2), id="it missed a round"),
        pytest.param([[(1, 2), (1, 1)], []], [None, 1], (1, 2), id="its memory ended"),
        pytest.param([[(1, 2), (1, 1)], [(1, 1)]], [None, 1], (1, 1), id="it has committed since"),
        pytest.param([[], []], [1, 1], None, id="nobody has committed"),
    ],
)
def test_a_round_that_ended_in_its_first_commit_does_not_count(
    offers: list[list[tuple[int, int]]], began: list[int | None], stamp: tuple[int, int] | None
) -> None:
    stamps = [[Stamp(*pair) for pair in pairs] for pairs in offers]
    choice = choose(stamps, cut_short(stamps, began))
    assert (None if choice is None else choice.stamp) == (None if stamp is None else Stamp(*stamp))
