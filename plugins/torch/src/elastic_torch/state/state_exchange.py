"""Exchange of numbers, bytes and JSON between ranks, over gloo, whatever the process group itself uses.

``Peers`` is for the training's own thread, ``Transport`` for one beside it, and for what goes from rank to rank.
Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from elastic_torch.version import Stamp

PART = 64 << 20  # bytes that are sent at once
PATIENCE = timedelta(days=1)
"""The time that a rank waits for another: one may evaluate for long meanwhile. A dead one breaks its connections."""
NAP = 0.005  # seconds between two looks at whether a collective is done


class Peers:
    """All ranks of the process group, for numbers and bytes; without a group, this rank alone.

    Its methods are collectives. The first one makes a process group of gloo's where that of the training is another.
    """

    def __init__(self) -> None:
        self._group: dist.ProcessGroup | None = None

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def world(self) -> int:
        """The number of ranks."""
        return dist.get_world_size() if dist.is_initialized() else 1

    def gather_bytes(self, content: torch.Tensor) -> list[torch.Tensor]:
        """Return the bytes of all ranks, by rank: uint8 of shape (bytes,), of any length."""
        if self.world == 1:
            return [content]
        sizes = [torch.empty(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([len(content)]), group=self._gloo())
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(content)] = content
        everybodys = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(everybodys, padded, group=self._gloo())
        return [each[: int(size)] for each, size in zip(everybodys, sizes, strict=True)]

    def gather_json(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank: anything that JSON can say."""
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(each.numpy().tobytes()) for each in self.gather_bytes(content)]

    def gather_stamps(self, stamps: Iterable[Stamp]) -> list[list[Stamp]]:
        """Return the stamps of all ranks' snapshots, by rank."""
        everybodys = self.gather_json([[stamp.round, stamp.step] for stamp in stamps])
        return [[Stamp(int(round_), int(step)) for round_, step in each] for each in everybodys]

    def differing(self, numbers: torch.Tensor) -> list[int]:
        """Return the indices of the numbers, int64 of shape (n,) on all ranks, that are not the same on all."""
        least, most = numbers.clone(), numbers.clone()
        if self.world > 1:
            dist.all_reduce(least, dist.ReduceOp.MIN, group=self._gloo())
            dist.all_reduce(most, dist.ReduceOp.MAX, group=self._gloo())
        return [int(index) for index in (least != most).nonzero().flatten()]

    def _gloo(self) -> dist.ProcessGroup:
        if self._group is None:
            whole = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
            assert isinstance(whole, dist.ProcessGroup)
            self._group = whole
        return self._group


class Transport:
    """All ranks, over a process group that belongs to one thread; making one is a collective.

    The group's methods are called directly: the replicator's thread may still be in one when the script destroys all
    groups by name.

    It waits for others in Python, and not in gloo: a thread that the interpreter's end, after an exception, finds in
    there would abort the process. So the main thread can :meth:`halt` the thread that uses this.
    """

    def __init__(self) -> None:
        self._inside = threading.Lock()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        group = dist.new_group(backend="gloo", timeout=PATIENCE)
        assert isinstance(group, dist.ProcessGroup)
        self._group = group

    def close(self) -> None:
        """Destroy the group, and with it the connections: a rank that waits for this one gets an error."""
        with self._inside:
            with contextlib.suppress(ValueError):  # the script has destroyed all groups
                if dist.is_initialized():
                    dist.destroy_process_group(self._group)
            del self._group

    def gather(self, row: Sequence[int]) -> list[list[int]]:
        """Return the rows of all ranks, by rank; all rows have the same length."""
        mine = torch.tensor(row, dtype=torch.int64)
        everybodys = [torch.empty_like(mine) for _ in range(self.world)]
        self._wait(lambda: self._group.allgather([everybodys], [mine]))
        return [each.tolist() for each in everybodys]

    def agree(self, well: bool) -> bool:
        """Return True if the value is true on all ranks."""
        return all(said for [said] in self.gather([int(well)]))

    def add_up(self, table: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' tables of int64, written into this one."""
        self._wait(lambda: self._group.allreduce([table]))
        return table

    def _wait(self, begin: Callable[[], dist.Work]) -> None:
        with self._inside:
            work = begin()
        while not work.is_completed():
            time.sleep(NAP)
        with self._inside:
            work.wait()

    def halt(self, seconds: float) -> None:
        """Stop all use from now on, in any thread; wait at most so many seconds for a use that has begun."""
        self._inside.acquire(timeout=seconds)

    def exchange(self, given: Iterable[tuple[int, torch.Tensor]], taken: Iterable[tuple[int, torch.Tensor]]) -> None:
        """Send bytes to ranks, and receive bytes from ranks; returns when all of it is done.

        It goes a part at a time, so that what is large does not fill the senders' buffers.

        Args:
            given: To whom, and what, as uint8 of shape (bytes,).
            taken: From whom, and where to. Those between two ranks come in the order in which they were given.
        """
        given, taken = list(given), list(taken)
        for start in range(0, max((len(content) for _, content in (*given, *taken)), default=0), PART):
            part = slice(start, start + PART)
            with self._inside:
                works = [self._group.recv([into[part]], source, 0) for source, into in taken if len(into) > start]
                works += [self._group.send([content[part]], to, 0) for to, content in given if len(content) > start]
                for work in works:
                    work.wait()
