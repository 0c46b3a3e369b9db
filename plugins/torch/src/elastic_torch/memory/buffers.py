"""The memory tier: buffers of a worker, which the agent keeps for the worker that comes after it.

Each commit is written into a buffer whose snapshot need not stay, so that one complete snapshot is always there. Two
buffers do for a state that each rank has in full: since a step needs all ranks, none is more than one commit ahead of
another, and so all have one in common. Of a sharded state those stay as well that the ranks may have to go back to when
a node is lost: the one that has replicas of all parts, and the one that is being sent. With replicas that are made fast
three buffers are enough, else four are taken.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import torch

from elastic_core.errors import ResourceError, UsageError
from elastic_core.threads import asked
from elastic_core.worker import held, hold, open_channel, release
from elastic_torch.memory.snapshot import PAGE, Buffer, Snapshot
from elastic_torch.memory.snapshot_format import is_of_other_release
from elastic_torch.version import Stamp

logger = logging.getLogger("elastic_torch.memory")
ANSWER = 60.0  # seconds that the agent may take to hand over what it keeps; it normally takes a millisecond
_IDLE = 10  # the nice value of what a busy machine is to leave for later
_NEVER = Stamp(-1, -1)
MOST = 4
"""Buffers of a sharded state: one to write to, the newest, the one that is safe, the one that is being sent."""
_THREAD = "elastic-snapshot"
"""The name of the threads that prepare buffers, for which the end of the process does not wait."""


class Buffers:
    """The buffers of this worker for one state, or for the replicas of one other rank's part of it.

    Args:
        name: Of the state, unlike any other's in the same worker.
        local_rank: The worker's number on its node, by which the next round's finds them again.
        count: How many there may be; two are made where nothing is pinned.
        pinned: Asked for the stamps of snapshots that must stay beside the newest one.
        replica: The number of the rank whose replicas they are, among those that this worker keeps replicas for.
    """

    def __init__(
        self,
        name: str,
        local_rank: int,
        count: int = 2,
        *,
        pinned: Callable[[], Collection[Stamp]] = tuple,
        replica: int | None = None,
    ) -> None:
        self._name, self._pinned, self._keeps = name, pinned, False
        self.prefix = f"{name}/{local_rank}" + ("" if replica is None else f"/replica/{replica}")
        """The beginning of the agent's names for them."""
        self._names = [f"{self.prefix}/{index}" for index in range(count)]
        self._second: Future[Buffer] | None = None  # the second buffer, while its memory is being taken
        with open_channel() as agent:
            self.outlives = agent is not None
            """True if there is an agent that keeps them; without one a snapshot is of no use."""
        self._buffers = [adopted(name) for name in self._names]
        self._newest: Buffer | None = None
        """The buffer that the next commit must not touch: the newest snapshot, or the one that was restored."""
        self.go_back_to(max(self.stamps(), default=None))
        if replica is None:
            # The newest snapshot is made ready to be read, and the other buffers to be written to.
            self._settle(sorted((buffer for buffer in self._buffers if buffer is not None), key=_age, reverse=True))

    def is_empty(self) -> bool:
        """Return True if nothing was ever kept."""
        return not any(self._buffers)

    def snapshots(self) -> list[Snapshot]:
        """Return the complete snapshots."""
        return [found for buffer in self._buffers if buffer is not None and (found := buffer.read()) is not None]

    def stamps(self) -> tuple[Stamp, ...]:
        """Return the stamps of the complete snapshots, the newest first."""
        return tuple(sorted((found.stamp for found in self.snapshots()), reverse=True))

    def go_back_to(self, stamp: Stamp | None) -> None:
        """Keep the snapshot with this stamp, if it is here, and no newer one: all ranks go on from it."""
        self._newest = None if stamp is None else self.buffer_of(stamp)

    def drop(self, is_dropped: Callable[[Stamp], bool]) -> None:
        """Let go of these snapshots, if they are here; their memory is for the next ones."""
        for buffer in self._buffers:
            if buffer is not None and (found := buffer.read()) is not None and is_dropped(found.stamp):
                buffer.begin()
        self.go_back_to(max(self.stamps(), default=None))

    def snapshot(self, stamp: Stamp) -> Snapshot:
        """Return the snapshot with this stamp. The next commit goes to another buffer.

        Raises:
            LookupError: There is none.
        """
        found = next((found for found in self.snapshots() if found.stamp == stamp), None)
        if found is None:
            raise LookupError(f"no snapshot of {stamp}")
        self.go_back_to(stamp)
        return found

    def buffer_of(self, stamp: Stamp) -> Buffer | None:
        """Return the buffer of the snapshot with this stamp; from any thread, as long as it is pinned."""
        return next((buffer for buffer in self._buffers if buffer is not None and buffer.stamp == stamp), None)

    def keep(self, stamp: Stamp, said: Any, tensors: list[torch.Tensor]) -> None:
        """Commit: copy the state into a buffer. Where there is no room for it, this tier ends, with a warning.

        Raises:
            UsageError: Another state of this worker, of the same name, keeps its snapshots too.
        """
        self._check_name()
        index = self._next()
        try:
            if self._buffers[index] is None and self._second is not None:
                self._put(index, self._second.result())
                self._second = None
            buffer = self._buffers[index]
            if buffer is None or not buffer.write(stamp, said, tensors):
                buffer = Buffer.create(self._names[index], tensors, len(json.dumps(said)))
                buffer.write(stamp, said, tensors)
                self._put(index, buffer)
        except ResourceError as exc:
            self._end(exc.message)
            return
        self._newest = buffer
        self._prepare(buffer)

    def room(self, size: int) -> Buffer:
        """Return a buffer of at least so many bytes for a snapshot from elsewhere; it is empty until that is finished.

        Raises:
            ResourceError: There is no memory for it, or the agent does not keep it.
        """
        index = self._next()
        buffer = self._buffers[index]
        if buffer is None or buffer.size < size:
            buffer = Buffer.sized(self._names[index], size + size // 8)
            self._put(index, buffer)
        buffer.begin()
        return buffer

    def forget(self) -> None:
        """Let go of all of them, and have the agent do so."""
        for index, name in enumerate(self._names):
            release(name)
            if (buffer := self._buffers[index]) is not None:
                buffer.close()
        self._buffers, self._newest = [None] * len(self._names), None

    def _check_name(self) -> None:
        """Refuse a second state of this name; one that only took the place of another is none (as in tests)."""
        last = _keepers.get(self._names[0])
        if self._keeps and last is not None and last is not self:
            raise UsageError(
                f"Two training states of this worker are named {self._name!r}: each would go on from the other's.",
                hint='Give each a name of its own: TrainState(..., name="generator").',
            )
        self._keeps = True
        _keepers[self._names[0]] = self

    def _prepare(self, written: Buffer) -> None:
        """Prepare memory in a thread, so that the next commits cost less than this one."""
        self._settle([written])
        other = self._next()
        if self.outlives and self._buffers[other] is None and self._second is None:
            self._second = asked(partial(Buffer.sized, self._names[other], written.size), name=_THREAD)

    def _settle(self, buffers: Sequence[Buffer]) -> None:
        left = [buffer for buffer in buffers if not buffer.settled]

        def settle() -> None:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _IDLE)  # this thread's
            for buffer in left:
                buffer.settle()

        for buffer in left:
            buffer.settled = True
        if left:
            asked(settle, name=_THREAD)

    def _next(self) -> int:
        """Return the buffer to write to: the oldest one that is not needed; a new one if there is none, or just one."""
        pinned = self._pinned()
        there = [buffer for buffer in self._buffers if buffer is not None]
        free = [buffer for buffer in there if buffer is not self._newest and buffer.stamp not in pinned]
        if len(there) < len(self._buffers) and (not free or len(there) == 1):
            return self._buffers.index(None)
        return self._buffers.index(min(free, key=_age))

    def _put(self, index: int, buffer: Buffer) -> None:
        try:
            if self.outlives and not hold(self._names[index], buffer.fd):
                self._end("the agent does not answer")
        except ResourceError:
            buffer.close()
            raise
        if (old := self._buffers[index]) is not None:
            old.close()
        self._buffers[index] = buffer

    def _end(self, why: str) -> None:
        self.outlives = False
        warnings.warn(f"No snapshots are kept in memory from here on: {why}", stacklevel=4)


def _age(buffer: Buffer) -> Stamp:
    return buffer.stamp or _NEVER


_keepers: weakref.WeakValueDictionary[str, Buffers] = weakref.WeakValueDictionary()
"""The object that kept a state last in this process, by the name of its first buffer."""


def adopted(name: str) -> Buffer | None:
    """Return what the agent keeps under a name; None where there is nothing, or no agent.

    Raises:
        ResourceError: The agent has not said: to go on without it might be to begin the training anew.
    """
    began = time.monotonic()
    fd = held(name, ANSWER)
    if fd is None:
        if time.monotonic() - began < ANSWER:
            return None
        raise ResourceError(
            f"The agent has not answered for {ANSWER:.0f} seconds, so what it keeps of the training is not known.",
            hint="The next round asks again. If its host is as busy as that, leave the agent a core.",
        )
    if is_of_other_release(fd):
        logger.warning(
            "The snapshot %s in memory is of another release of elastic-torch, and is lost. Keep one release for as "
            "long as a job runs.",
            name,
        )
    if os.fstat(fd).st_size < PAGE:
        os.close(fd)
        return None
    return Buffer(fd)
