"""The replicas that a rank keeps for ranks of another node, in memory that its own node's agent holds.

For each of those ranks there are two buffers: one stays whole while the other one is written. A buffer says whose part
it holds, of how many, and of which step; the worker with the same number on the node finds it in the next round.
"""

from __future__ import annotations

from collections.abc import Iterator

from elastic_core.errors import ResourceError
from elastic_core.worker.fd_store import hold, release
from elastic_torch.memory.buffers import adopted
from elastic_torch.memory.sharded.plan import HeldPart
from elastic_torch.memory.sharded.pool import held_part
from elastic_torch.memory.snapshot import Buffer, Snapshot
from elastic_torch.version import Stamp

BUFFERS = 2


class Replicas:
    """The buffers, by the number of the rank that they are for among those that this one keeps replicas for.

    Args:
        name: Of the state.
        local_rank: This worker's number on its node.
    """

    def __init__(self, name: str, local_rank: int) -> None:
        self._prefix = f"{name}/{local_rank}/replica"
        self._buffers: dict[tuple[int, int], Buffer] = {}
        self._stamps: dict[tuple[int, int], Stamp] = {}
        number = 0
        while self._adopt(number):
            number += 1

    def holdings(self) -> dict[HeldPart, Snapshot]:
        """Return what is complete, and whose part it is."""
        return {held_: found for _, found in self._read() if (held_ := held_part(found)) is not None}

    def room(self, number: int, size: int, safe: Stamp | None) -> Buffer:
        """Return a buffer for the next replica, of at least so many bytes. From here on until it is finished it holds
        nothing.

        Args:
            number: Of the rank that it is for.
            size: Bytes.
            safe: The stamp of the replica that must stay.

        Raises:
            ResourceError: There is no memory for it, or the agent does not keep it.
        """
        places = [(number, index) for index in range(BUFFERS)]
        free = [place for place in places if self._stamps.get(place) != safe or safe is None]
        place = min(free, key=lambda place: self._stamps.get(place, Stamp(-1, -1)))
        buffer = self._buffers.get(place)
        if buffer is None or buffer.size < size:
            buffer = Buffer.sized(self._name(place), size + size // 8)
            if not hold(self._name(place), buffer.fd):
                buffer.close()
                raise ResourceError("The agent does not answer.")
            if (old := self._buffers.pop(place, None)) is not None:
                old.close()
            self._buffers[place] = buffer
        self._stamps.pop(place, None)
        buffer.begin()
        return buffer

    def came(self, buffer: Buffer, stamp: Stamp) -> None:
        """Record that a buffer is finished."""
        self._stamps.update({place: stamp for place, its in self._buffers.items() if its is buffer})

    def let_go(self, first: int) -> None:
        """Release the replicas from this number on: no rank goes back to them any more."""
        for place in [place for place in self._buffers if place[0] >= first]:
            release(self._name(place))
            self._buffers.pop(place).close()
            self._stamps.pop(place, None)

    def _read(self) -> Iterator[tuple[tuple[int, int], Snapshot]]:
        for place, buffer in self._buffers.items():
            if (found := buffer.read()) is not None:
                yield place, found

    def _adopt(self, number: int) -> bool:
        """Take over what the agent has under this number; whether it has any."""
        any_ = False
        for place in [(number, index) for index in range(BUFFERS)]:
            if (buffer := adopted(self._name(place))) is not None:
                any_ = True
                self._buffers[place] = buffer
                if (found := buffer.read()) is not None:
                    self._stamps[place] = found.stamp
        return any_

    def _name(self, place: tuple[int, int]) -> str:
        return f"{self._prefix}/{place[0]}/{place[1]}"
