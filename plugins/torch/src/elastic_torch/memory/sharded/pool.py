"""A rank's own snapshots: as many as have to be there at once, and no more.

Besides the newest one, which the next commit must not touch, those stay that the ranks may have to go back to when a
node is lost: the one that has replicas of all parts, and the one that is being sent. With replicas that are made fast
three buffers are enough, else four are taken; without any, two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from elastic_torch.memory.buffers import Buffers
from elastic_torch.memory.sharded.plan import HeldPart
from elastic_torch.memory.snapshot import Buffer, Snapshot
from elastic_torch.version import Stamp

MOST = 4
"""Buffers: one to write to, the newest, the one that is safe, the one that is being sent."""


class Pool(Buffers):
    """The buffers of this worker.

    Args:
        name: Of the state.
        local_rank: The worker's number on its node.
        pinned: Asked for the stamps of snapshots that must stay.
    """

    def __init__(self, name: str, local_rank: int, pinned: Callable[[], Collection[Stamp]]) -> None:
        super().__init__(name, local_rank, MOST)
        self._pinned = pinned
        self._stamps: dict[int, Stamp] = {index: found.stamp for index, found in self._read()}
        """By buffer, of what is complete in it."""
        self._last: Stamp | None = max(self._stamps.values(), default=None)
        """Of the snapshot that all ranks have or will have: the newest one, or the one that was restored."""

    def keep(self, stamp: Stamp, said: Any, tensors: list[torch.Tensor]) -> None:
        """Commit: copy this rank's part into a buffer whose snapshot is not needed any more."""
        super().keep(stamp, said, tensors)
        if self.outlives and self._newest is not None:
            self._stamps[self._newest] = self._last = stamp

    def gone_back_to(self, stamp: Stamp) -> None:
        """Note that all ranks go on from this snapshot, whatever else is here."""
        self._last = stamp

    def holdings(self) -> dict[HeldPart, Snapshot]:
        """Return what is complete, and whose part it is."""
        return {held: found for _, found in self._read() if (held := held_part(found)) is not None}

    def buffer_of(self, stamp: Stamp) -> Buffer | None:
        """Where the one with this stamp is; from any thread, as long as it is pinned."""
        stamps = list(self._stamps.items())  # at once: the training's thread commits meanwhile
        index = next((index for index, its in stamps if its == stamp), None)
        return None if index is None else self._buffers[index]

    def _next(self) -> int:
        """Return the buffer to write to: the oldest that is not needed; one more where there is none, or only one so
        far.
        """
        keep = {*self._pinned(), self._last}
        free = [index for index, buffer in enumerate(self._buffers) if buffer and self._stamps.get(index) not in keep]
        new = [index for index, buffer in enumerate(self._buffers) if buffer is None]
        if new and (not free or len(new) == MOST - 1):
            index = new[0]
        else:
            index = min(free, key=lambda index: self._stamps.get(index, Stamp(-1, -1)))
        self._stamps.pop(index, None)
        return index


def held_part(found: Snapshot) -> HeldPart | None:
    """Whose part a snapshot is; None where it is none of a sharded state."""
    match found.said:
        case {"rank": int(rank), "world": int(world), "tree": _}:
            return HeldPart(found.stamp, rank, world)
    return None
