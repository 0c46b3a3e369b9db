"""Which rank has which part, and which rank sends which part to which: pure functions of what all ranks have gathered.

*Old* ranks are those of the round in which a snapshot was made, in its *world*; *present* ones are those that plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from elastic_torch.version import Stamp


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """A part of a tensor: whole elements, from ``offset`` on, of ``size``; one number for each dimension.

    ``torch.distributed.checkpoint`` describes parts so, too.
    """

    offset: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of elements; a tensor without dimensions has one."""
        return math.prod(self.size)

    def overlap(self, other: Box) -> Box | None:
        """Return what both have in common; None if that is nothing."""
        offset, size = [], []
        for mine, length, its, its_length in zip(self.offset, self.size, other.offset, other.size, strict=True):
            start, end = max(mine, its), min(mine + length, its + its_length)
            if start >= end:
                return None
            offset.append(start)
            size.append(end - start)
        return Box(tuple(offset), tuple(size))

    def within(self, outer: Box) -> tuple[slice, ...]:
        """Return the slices of ``outer``'s own tensor that are this box, which lies in it."""
        return tuple(
            slice(mine - its, mine - its + length)
            for mine, length, its in zip(self.offset, self.size, outer.offset, strict=True)
        )


@dataclass(frozen=True, slots=True, order=True)
class HeldPart:
    """A complete snapshot of an old rank's part, in the memory of a present rank's node."""

    stamp: Stamp
    rank: int
    world: int  # the number of ranks then


@dataclass(frozen=True, slots=True)
class FoundState:
    """A state of which every part is somewhere."""

    stamp: Stamp
    holders: tuple[tuple[int, ...], ...]
    """By old rank, the present ranks that have its part, in order; at least one each."""

    @property
    def world(self) -> int:
        """The number of ranks that made it."""
        return len(self.holders)

    def giver(self, old: int, taker: int) -> int:
        """Return the rank that gives an old rank's part to ``taker``: itself if it can, else the others in turn."""
        having = self.holders[old]
        return taker if taker in having else having[taker % len(having)]

    def base(self, rank: int, world: int) -> int:
        """Return the old rank whose snapshot has all else for a present rank: its number, if the world is as large."""
        return rank if world == self.world else 0


def every(holdings: Sequence[Sequence[HeldPart]]) -> list[FoundState]:
    """Return all states of which every part is somewhere, the newest first."""
    having: dict[tuple[Stamp, int], dict[int, list[int]]] = {}
    for present, held in enumerate(holdings):
        for holding in sorted(set(held)):
            having.setdefault((holding.stamp, holding.world), {}).setdefault(holding.rank, []).append(present)
    return [
        FoundState(stamp, tuple(tuple(parts[old]) for old in range(world)))
        for (stamp, world), parts in sorted(having.items(), key=lambda item: item[0], reverse=True)
        if all(old in parts for old in range(world))
    ]


def twice(found: Sequence[FoundState], nodes: Sequence[int]) -> FoundState | None:
    """Return the newest state of which every part is on two nodes, so that the loss of one does not matter."""
    return next((f for f in found if all(len({nodes[rank] for rank in having}) > 1 for having in f.holders)), None)


def partners(nodes: Sequence[int]) -> tuple[int | None, ...]:
    """Return the keeper of the replica of each rank's part: a rank of the next node; None where there is one node.

    Nodes of different sizes share what there is: the ranks of the next one take it in turns.
    """
    members: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        members.setdefault(node, []).append(rank)
    if len(members) < 2:
        return (None,) * len(nodes)
    order = sorted(members)
    after = {node: members[order[(place + 1) % len(order)]] for place, node in enumerate(order)}
    return tuple(after[node][members[node].index(rank) % len(after[node])] for rank, node in enumerate(nodes))


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """A part of a tensor that one present rank gives another, or has for itself."""

    tensor: int  # the tensor's number
    taker: int  # who needs it
    old: int  # out of whose part it is
    giver: int  # who has that
    box: Box  # where it lies in the whole tensor


def pieces(
    found: FoundState,
    had: Sequence[Sequence[Box]],
    needed: Sequence[Sequence[Box]],
    rank: int,
    tensors: range,
) -> Iterator[Piece]:
    """Yield what a present rank gives and takes, by tensor, taker and old rank: of a pair, both go through it alike.

    Where several old ranks had the same part (a mesh that replicates), one of them is taken: one that the taker can
    reach by itself, if there is any.

    ``had`` has the parts by old rank and tensor, ``needed`` by present rank and tensor.
    """
    for tensor in tensors:
        parts: dict[Box, list[int]] = {}
        for old, boxes in enumerate(had):
            parts.setdefault(boxes[tensor], []).append(old)
        for taker, boxes in enumerate(needed):
            for part, olds in parts.items():
                if taker != rank and not any(rank in found.holders[old] for old in olds):
                    continue
                if (box := part.overlap(boxes[tensor])) is None:
                    continue
                old = next((o for o in olds if taker in found.holders[o]), olds[0])
                giver = found.giver(old, taker)
                if rank in (giver, taker):
                    yield Piece(tensor, taker, old, giver, box)


def windows(sizes: Sequence[int], most: int) -> Iterator[range]:
    """Yield the tensors that are dealt with at a time: as many as have ``most`` bytes together, at least one."""
    start, total = 0, 0
    for number, size in enumerate(sizes):
        if number > start and total + size > most:
            yield range(start, number)
            start, total = number, 0
        total += size
    if start < len(sizes):
        yield range(start, len(sizes))


def sources(partner: Sequence[int | None], rank: int) -> tuple[int, ...]:
    """Return the ranks whose replicas this rank keeps, in order."""
    return tuple(source for source, keeper in enumerate(partner) if keeper == rank)
