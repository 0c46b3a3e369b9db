"""Numbers and bytes between ranks, over gloo, whatever the training itself uses. Nothing is unpickled.

It has a process group of its own, whose methods are called directly: the replicator's thread may still be in one when
the script destroys all groups by name.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from elastic_torch.state.state_exchange import PART

PATIENCE = timedelta(days=1)
"""How long a rank waits for another: one may evaluate for long meanwhile. A dead one breaks its connections."""


NAP = 0.005
"""Seconds between two looks at whether a collective is done."""


class Transport:
    """The process group, of all ranks; making one is a collective.

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
        """Whether it is so on all ranks."""
        return all(said for [said] in self.gather([int(well)]))

    def add_up(self, table: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' tables of int64, written into this one."""
        self._wait(lambda: self._group.allreduce([table]))
        return table

    def _wait(self, begin: Callable[[], dist.Work]) -> None:
        """Have a collective done."""
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
