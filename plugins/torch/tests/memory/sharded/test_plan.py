"""The holders of parts, and the plan by which they give them to others."""

from __future__ import annotations

import random

import pytest

from elastic_torch.memory.sharded.plan import (
    Box,
    FoundState,
    HeldPart,
    every,
    partners,
    pieces,
    sources,
    twice,
    windows,
)
from elastic_torch.version import Stamp


def held(*parts: str) -> list[HeldPart]:
    """``"2.5:1/3"`` is round 2, step 5, old rank 1 of 3."""
    found = []
    for part in parts:
        stamp, whose = part.split(":")
        round_, step = map(int, stamp.split("."))
        rank, world = map(int, whose.split("/"))
        found.append(HeldPart(Stamp(round_, step), rank, world))
    return found


@pytest.mark.parametrize(
    ("holdings", "newest", "holders"),
    [
        pytest.param([[], []], None, None, id="nobody has anything"),
        pytest.param([held("1.5:0/2"), held("1.5:1/2")], Stamp(1, 5), ((0,), (1,)), id="own parts"),
        pytest.param(
            [held("1.5:0/2", "1.4:0/2"), held("1.4:1/2", "1.3:1/2")],
            Stamp(1, 4),
            ((0,), (1,)),
            id="one was ahead by a commit",
        ),
        pytest.param(
            [held("1.6:1/2", "1.5:1/2", "1.5:0/2"), []], Stamp(1, 5), ((0,), (0,)), id="a replica of a lost part"
        ),
        pytest.param([held("1.6:1/2", "1.5:1/2"), []], None, None, id="a part is lost"),
        pytest.param(
            [held("2.3:0/1"), held("1.9:0/2", "1.9:1/2")], Stamp(2, 3), ((0,),), id="a later round goes first"
        ),
        pytest.param(
            [held("2.9:0/3", "1.9:0/2"), held("1.9:1/2")], Stamp(1, 9), ((0,), (1,)), id="a later round is not whole"
        ),
        pytest.param(
            [held("1.5:0/2", "1.5:1/2"), held("1.5:0/2")], Stamp(1, 5), ((0, 1), (0,)), id="own parts and replicas"
        ),
    ],
)
def test_the_newest_state_of_which_every_part_is_somewhere(
    holdings: list[list[HeldPart]], newest: Stamp | None, holders: tuple[tuple[int, ...], ...] | None
) -> None:
    found = every(holdings)
    assert (found[0].stamp if found else None) == newest
    assert (found[0].holders if found else None) == holders


def test_states_come_newest_first() -> None:
    holdings = [held("1.4:0/2", "1.5:0/2", "2.1:0/1"), held("1.4:1/2", "1.5:1/2")]
    assert [found.stamp for found in every(holdings)] == [Stamp(2, 1), Stamp(1, 5), Stamp(1, 4)]


def test_the_state_that_the_loss_of_a_node_would_lead_back_to() -> None:
    found = [
        FoundState(Stamp(1, 7), ((0,), (1,), (2,))),
        FoundState(Stamp(1, 6), ((0, 1), (0, 1), (2,))),
        FoundState(Stamp(1, 5), ((0, 2), (1, 2), (2, 0))),
    ]
    assert twice(found, [0, 0, 1]) == found[2]
    assert twice(found, [0, 1, 2]) == found[2]
    assert twice(found, [0, 0, 0]) is None
    assert twice(found[:2], [0, 0, 1]) is None


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([0, 0], (None, None)),
        ([0, 1], (1, 0)),
        ([0, 0, 1, 1], (2, 3, 0, 1)),
        ([0, 1, 2], (1, 2, 0)),
        ([0, 0, 0, 1], (3, 3, 3, 0)),
        ([0, 0, 1, 1, 2], (2, 3, 4, 4, 0)),
        ([3, 1, 3, 1], (1, 0, 3, 2)),
    ],
)
def test_the_partner_is_on_another_node(nodes: list[int], expected: tuple[int | None, ...]) -> None:
    assert partners(nodes) == expected
    for rank, partner in enumerate(expected):
        assert partner is None or (nodes[partner] != nodes[rank] and rank in sources(expected, partner))


def test_a_rank_gives_to_itself_what_it_has_and_others_take_turns() -> None:
    found = FoundState(Stamp(1, 1), ((0, 2), (1,)))
    assert [found.giver(0, taker) for taker in range(4)] == [0, 2, 2, 2]
    assert [found.giver(0, taker) for taker in (3, 4, 5)] == [2, 0, 2]
    assert [found.base(rank, 2) for rank in range(2)] == [0, 1]
    assert [found.base(rank, 3) for rank in range(3)] == [0, 0, 0]


def rows(length: int, width: int, ranks: int) -> list[Box]:
    """Return the boxes of a matrix under ``Shard(0)``: as ``torch.chunk`` makes them."""
    step = -(-length // ranks)
    starts = [min(rank * step, length) for rank in range(ranks)]
    return [Box((start, 0), (min(step, length - start), width)) for start in starts]


def test_everybody_gets_all_that_it_needs_and_both_ends_know_it(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(30):
        play(dice)


def play(dice: random.Random) -> None:
    """Plan for any matrices, on any numbers of ranks, whose parts are with any of them."""
    old, new, tensors = dice.randrange(1, 6), dice.randrange(1, 6), 3
    shapes = [(dice.randrange(1, 12), dice.randrange(1, 4)) for _ in range(tensors)]
    had = [[rows(*shape, old)[rank] for shape in shapes] for rank in range(old)]
    needed = [[rows(*shape, new)[rank] for shape in shapes] for rank in range(new)]
    having = tuple(tuple(sorted({dice.randrange(new) for _ in range(2)})) for _ in range(old))
    found = FoundState(Stamp(1, 1), having)
    plans = [list(pieces(found, had, needed, rank, range(tensors))) for rank in range(new)]
    for rank, plan in enumerate(plans):
        for piece in plan:
            assert piece in plans[piece.taker]
            assert piece in plans[piece.giver]
            ends = [
                [p for p in plans[end] if (p.giver, p.taker) == (piece.giver, piece.taker)]
                for end in (piece.giver, piece.taker)
            ]
            assert ends[0] == ends[1], "both go through it in the same order"
            assert piece.giver in having[piece.old]
            assert piece.giver == piece.taker or piece.taker not in having[piece.old]
        for tensor in range(tensors):
            taken = [piece.box for piece in plan if piece.taker == rank and piece.tensor == tensor]
            assert sum(box.elements for box in taken) == needed[rank][tensor].elements
            assert not any(a.overlap(b) for a in taken for b in taken if a != b)


def test_of_what_several_had_alike_the_one_within_reach_is_taken_and_once() -> None:
    had = [[Box((0,), (4,))]] * 3
    found = FoundState(Stamp(1, 1), ((0,), (1,), (0,)))
    assert [(p.old, p.giver) for p in pieces(found, had, [[Box((0,), (4,))]] * 3, 1, range(1)) if p.taker == 1] == [
        (1, 1)
    ]
    assert [(p.old, p.giver) for p in pieces(found, had, [[Box((0,), (4,))]] * 3, 2, range(1))] == [(0, 0)]


def test_boxes() -> None:
    assert Box((0, 2), (4, 3)).overlap(Box((3, 0), (4, 3))) == Box((3, 2), (1, 1))
    assert Box((0, 2), (4, 3)).overlap(Box((4, 0), (4, 3))) is None
    assert Box((3, 2), (1, 1)).within(Box((0, 2), (4, 3))) == (slice(3, 4), slice(0, 1))
    assert Box((), ()).overlap(Box((), ())) == Box((), ())
    assert Box((), ()).elements == 1
    assert Box((0,), (0,)).overlap(Box((0,), (5,))) is None


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([], []), ([5, 5, 5], [(0, 2), (2, 3)]), ([50, 1, 1], [(0, 1), (1, 3)]), ([1, 50], [(0, 1), (1, 2)])],
)
def test_so_many_tensors_at_a_time_as_there_is_room_for(sizes: list[int], expected: list[tuple[int, int]]) -> None:
    assert [(window.start, window.stop) for window in windows(sizes, 10)] == expected
