"""What ranks tell and give each other when a round begins: what each has, and a snapshot to those who have none.

Numbers and bytes only, over gloo, whatever the process group itself uses: nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from elastic_torch.memory.buffers import SLOTS
from elastic_torch.memory.snapshot import HEADER_BYTES, Slot
from elastic_torch.version import Stamp

PART = 64 << 20
"""Bytes that are sent at once."""


class Peers:
    """All ranks of the process group, for numbers and bytes; without a group, this rank alone.

    Its methods are collectives. The first one makes a process group of gloo's where that of the training is another.
    """

    def __init__(self) -> None:
        self._group: dist.ProcessGroup | None = None

    @property
    def rank(self) -> int:
        """This one's number."""
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def world(self) -> int:
        """How many there are."""
        return dist.get_world_size() if dist.is_initialized() else 1

    def of_first(self, numbers: Sequence[int]) -> list[int]:
        """The numbers that rank 0 has given; every rank may give another count of them."""
        if self.world == 1:
            return list(numbers)
        size = torch.tensor([len(numbers)])
        dist.broadcast(size, 0, group=self._gloo())
        content = torch.tensor(numbers, dtype=torch.int64) if self.rank == 0 else torch.empty(int(size)).long()
        dist.broadcast(content, 0, group=self._gloo())
        return [int(number) for number in content]

    def gather_bytes(self, content: torch.Tensor) -> list[torch.Tensor]:
        """Everybody's bytes, by rank: uint8 of shape (bytes,), of any length."""
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

    def differing(self, numbers: torch.Tensor) -> list[int]:
        """Which of these numbers, int64 of shape (n,) on all ranks, are not the same on all of them."""
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


def gathered(stamps: Sequence[Stamp]) -> list[list[Stamp]]:
    """What all ranks have, in order. All of the process group call it; without one, this rank is alone.

    Args:
        stamps: Of this rank's snapshots, one for each slot at most.
    """
    if not dist.is_initialized():
        return [list(stamps)]
    rows = [[stamp.round, stamp.step] for stamp in stamps]
    numbers = torch.tensor(rows + [[-1, -1]] * (SLOTS - len(rows)))
    everybodys = [torch.empty_like(numbers) for _ in range(dist.get_world_size())]
    if dist.get_backend() == "gloo":
        dist.all_gather(everybodys, numbers)
    else:
        group = dist.new_group(backend="gloo")
        dist.all_gather(everybodys, numbers, group=group)
        dist.destroy_process_group(group)
    return [[Stamp(*row) for row in each.tolist() if row[1] >= 0] for each in everybodys]


def hand_over(source: int, to: Sequence[int], have: Callable[[], Slot], room: Callable[[int], Slot]) -> None:
    """Bring a snapshot from one rank to others. All ranks of the process group call it with the same ranks.

    Args:
        source: The rank that has it.
        to: Those that get it.
        have: Called at the source: its slot.
        room: Called at the others, with the number of bytes that it must have room for.
    """
    group = dist.new_group(sorted([source, *to]), backend="gloo")
    rank = dist.get_rank()
    if rank != source and rank not in to:
        return
    size = torch.zeros(1, dtype=torch.int64)
    slot = have() if rank == source else None
    if slot is not None:
        size.fill_(slot.used())
    dist.broadcast(size, source, group=group)
    if slot is None:
        slot = room(int(size))
        slot.begin()
    content = slot.bytes()
    for start in range(HEADER_BYTES, int(size), PART):
        dist.broadcast(content[start : min(start + PART, int(size))], source, group=group)
    header = slot.header()
    dist.broadcast(header, source, group=group)
    if rank != source:
        slot.finish(header)
    dist.destroy_process_group(group)
