"""The memory tier: two slots per worker, which the agent keeps for the worker that comes after it.

Each commit is written into the slot that does not hold the newest one, so that one complete snapshot is always there.
Since a step needs all ranks, none is more than one commit ahead of another, and so all have one in common.
"""

from __future__ import annotations

import json
import os
import warnings
from typing import Any

import torch

from elastic_core.errors import ResourceError
from elastic_core.holding import held, hold
from elastic_core.reporting import channel
from elastic_torch.snapshot import PAGE, Slot, Snapshot
from elastic_torch.stamp import Stamp

SLOTS = 2


class Memory:
    """The two slots of this worker.

    Args:
        name: Of the state, unlike any other's in the same worker.
        local_rank: The worker's number on its node, by which the next round's finds them again.
        slots: How many there are.
    """

    def __init__(self, name: str, local_rank: int, slots: int = SLOTS) -> None:
        self._names = [f"{name}/{local_rank}/{index}" for index in range(slots)]
        self._slots: list[Slot | None] = [None] * slots
        self._newest: int | None = None
        """Which slot is not to be written to."""
        with channel() as agent:
            self.outlives = agent is not None
            """Whether there is an agent that keeps them; else a snapshot would be of no use to anybody."""
        for index, name_ in enumerate(self._names):
            if (fd := held(name_)) is not None:
                self._adopt(index, fd)

    def stamps(self) -> tuple[Stamp, ...]:
        """Of the complete snapshots, the newest first."""
        return tuple(sorted((found.stamp for _, found in self._read()), reverse=True))

    def snapshot(self, stamp: Stamp) -> Snapshot:
        """The one with this stamp. The next commit goes to the other slot.

        Raises:
            LookupError: There is none.
        """
        for index, found in self._read():
            if found.stamp == stamp:
                self._newest = index
                return found
        raise LookupError(f"no snapshot of {stamp}")

    def slot(self, stamp: Stamp) -> Slot:
        """Where the one with this stamp is, to be sent.

        Raises:
            LookupError: There is none.
        """
        self.snapshot(stamp)
        assert self._newest is not None
        found = self._slots[self._newest]
        assert found is not None
        return found

    def keep(self, stamp: Stamp, said: Any, tensors: list[torch.Tensor]) -> None:
        """Commit: copy the state into a slot. Where there is no room for it, this tier ends, with a warning."""
        index = self._next()
        slot = self._slots[index]
        if slot is not None and slot.write(stamp, said, tensors):
            self._newest = index
            return
        try:
            slot = Slot.create(self._names[index], tensors, len(json.dumps(said)))
            slot.write(stamp, said, tensors)
            self._put(index, slot)
            self._newest = index
        except ResourceError as exc:
            self._end(exc.message)

    def room(self, size: int) -> Slot:
        """A slot of at least so many bytes, for a snapshot that comes from elsewhere.

        Raises:
            ResourceError: There is no memory for it, or the agent does not keep it.
        """
        index = self._next()
        slot = self._slots[index]
        if slot is None or slot.size < size:
            slot = Slot.sized(self._names[index], size + size // 8)
            self._put(index, slot)
        return slot

    def _next(self) -> int:
        """The slot that may be written to: the one without a complete snapshot, or with the older one."""
        if self._newest is not None:
            return 1 - self._newest
        stamps = {index: found.stamp for index, found in self._read()}
        empty = [index for index in range(SLOTS) if index not in stamps]
        return empty[0] if empty else min(stamps, key=stamps.__getitem__)

    def _read(self) -> list[tuple[int, Snapshot]]:
        read = [(index, slot.read()) for index, slot in enumerate(self._slots) if slot is not None]
        return [(index, found) for index, found in read if found is not None]

    def _put(self, index: int, slot: Slot) -> None:
        if self.outlives and not hold(self._names[index], slot.fd):
            self._end("the agent does not answer")
        if (old := self._slots[index]) is not None:
            old.close()
        self._slots[index] = slot

    def _adopt(self, index: int, fd: int) -> None:
        if os.fstat(fd).st_size < PAGE:
            os.close(fd)
        else:
            self._slots[index] = Slot(fd)

    def _end(self, why: str) -> None:
        self.outlives = False
        warnings.warn(f"No snapshots are kept in memory from here on: {why}", stacklevel=4)
