"""Exchange of numbers, bytes and JSON between all ranks, over gloo, whatever the process group itself uses.

Nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

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
        """The rank of this process."""
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def world(self) -> int:
        """How many there are."""
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
