"""The replicas that a rank keeps for ranks of another node, in memory that its own node's agent holds.

For each of those ranks there are two buffers: one stays whole while the other one is written. A buffer says whose part
it holds, of how many, and of which step; the worker with the same number on the node finds it in the next round.
"""

from __future__ import annotations

from collections.abc import Iterable

from elastic_core.errors import ResourceError
from elastic_torch.memory.buffers import Buffers
from elastic_torch.memory.sharded.plan import HeldPart
from elastic_torch.memory.snapshot import Buffer, Snapshot
from elastic_torch.version import Stamp


class Replicas:
    """The buffers, by the number of the rank that they are for among those that this one keeps replicas for."""

    def __init__(self, name: str, local_rank: int) -> None:
        self._name, self._local_rank = name, local_rank
        self._sources: list[Buffers] = []
        while not (found := self._buffers()).is_empty():
            self._sources.append(found)

    def _buffers(self) -> Buffers:
        return Buffers(self._name, self._local_rank, replica=len(self._sources))

    def holdings(self) -> dict[HeldPart, Snapshot]:
        """Return what is complete, and whose part it is."""
        return held_parts(found for buffers in self._sources for found in buffers.snapshots())

    def room(self, number: int, size: int, safe: Stamp | None) -> Buffer:
        """Return a buffer of at least so many bytes for the next replica; it is empty until that is finished.

        Raises:
            ResourceError: There is no memory for it, or the agent does not keep it.
        """
        while len(self._sources) <= number:
            self._sources.append(self._buffers())
        buffers = self._sources[number]
        buffers.go_back_to(safe)
        buffer = buffers.room(size)
        if not buffers.outlives:
            raise ResourceError("The agent does not answer.")
        return buffer

    def let_go(self, first: int) -> None:
        """Release the replicas from this number on: no rank goes back to them any more."""
        for buffers in self._sources[first:]:
            buffers.forget()
        del self._sources[first:]


def held_parts(snapshots: Iterable[Snapshot]) -> dict[HeldPart, Snapshot]:
    """Return whose part of a sharded state each snapshot is, without those of other states."""
    found = {}
    for snapshot in snapshots:
        match snapshot.said:
            case {"rank": int(rank), "world": int(world), "tree": _}:
                found[HeldPart(snapshot.stamp, rank, world)] = snapshot
    return found
