"""Regions of tensors: which part a rank has. Pure.

A part is a box of whole elements: where it begins in each dimension, and how far it goes, as
``torch.distributed.checkpoint`` describes parts, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """A part of a tensor. Both tuples have one number for each dimension, in elements."""

    offset: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many it has; a tensor without dimensions has one."""
        product = 1
        for length in self.size:
            product *= length
        return product

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


def whole(shape: Sequence[int]) -> Box:
    """All of a tensor of this shape."""
    return Box((0,) * len(shape), tuple(shape))
