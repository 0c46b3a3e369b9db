"""Ranks that look into DDP's buckets: after two steps, and in a new process's place after the order was replayed."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DistributedDataParallel imports it
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

from elastic_torch.state.gradient_order import GradientOrder

RANKS = 3
_alive: list[DistributedDataParallel] = []
"""To the end: the destructor may wait for threads that want the interpreter's lock (torch 2.13)."""


class Net(nn.Module):
    """Layers that are made in another order than they are used in."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.norm = nn.Linear(64, 1), nn.BatchNorm1d(64)
        self.middle = nn.ModuleList(nn.Linear(64, 64) for _ in range(5))
        self.first = nn.Linear(16, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From (batch, 16) to (batch, 1)."""
        x = self.norm(self.first(x)).relu()
        for layer in self.middle:
            x = layer(x).relu()
        out: torch.Tensor = self.last(x)
        return out


def buckets(model: DistributedDataParallel) -> list[list[str]]:
    """The names of the parameters in each bucket."""
    names = {id(parameter): name for name, parameter in model.module.named_parameters()}
    return [[names[id(p)] for p in bucket.parameters()] for bucket in model.reducer._get_zeros_like_grad_buckets()]


def step(model: DistributedDataParallel, accumulate: int) -> None:
    """Backward passes of which the last one reduces."""
    for _ in range(accumulate - 1):
        with model.no_sync():
            model(torch.randn(8, 16)).sum().backward()
    model(torch.randn(8, 16)).sum().backward()


def look(options: dict[str, Any], hook: str, accumulate: int) -> dict[str, Any]:
    """Return the buckets, and the values that must not change."""

    def made() -> DistributedDataParallel:
        model = DistributedDataParallel(Net(), bucket_cap_mb=0.03, **options)
        _alive.append(model)
        if hook == "fp16":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif hook == "powerSGD":
            model.register_comm_hook(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)
        return model

    first = made()
    order = GradientOrder(first)
    new = buckets(first)
    step(first, accumulate)
    order.end_recording()
    step(first, 1)
    second = made()
    before = [tensor.clone() for tensor in second.state_dict().values()]
    numbers = torch.get_rng_state()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        GradientOrder(second).replay(order.known)
    same = all(torch.equal(a, b) for a, b in zip(before, second.state_dict().values(), strict=True))
    same = same and torch.equal(numbers, torch.get_rng_state())
    clean = all(parameter.grad is None for parameter in second.parameters())
    step(second, 1)
    return {
        "known": len(order.known),
        "moved": buckets(first) != new,
        "again": buckets(second) == buckets(first),
        "same": same,
        "clean": clean,
        "warned": [str(warning.message) for warning in warned],
    }


def main(rank: int, folder: str, options: dict[str, Any], hook: str, accumulate: int) -> None:
    """Be one of the ranks."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    torch.manual_seed(rank)
    facts = look(options, hook, accumulate)
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(facts))
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    arguments = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    start_processes(main, arguments, RANKS, start_method="fork")  # torch and its compiler are imported once
