"""What ranks tell and give each other when a round begins: what each has, and a snapshot to those who have none.

Numbers and bytes only, over gloo, whatever the process group itself uses: nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from elastic_torch.memory import SLOTS
from elastic_torch.snapshot import HEADER_BYTES, Slot
from elastic_torch.stamp import Stamp

PART = 64 << 20
"""Bytes that are sent at once."""


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
