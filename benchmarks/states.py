"""The states in the benchmark of snapshots: trainings whose state has a certain size, and the plain copy of it."""

from __future__ import annotations

import ctypes
import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.processes import rss, rss_peak

MANY, FEW, ADAMW = "many", "few", "adamw"
KINDS = {MANY: "289 tensors", FEW: "4 tensors", ADAMW: "867 tensors, AdamW"}
"""Their names in tables. All have the same size; with AdamW two thirds of it are the optimizer's."""
LAYERS = 24
COPIES = 4
"""Plain copies at one time."""


@dataclass(frozen=True, slots=True)
class Training:
    """A model, all of whose elements are 1 at first, and its optimizer, if that has a state."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None

    def begin(self) -> None:
        """Make the optimizer's first step, which creates its state and changes no parameter."""
        if self.optimizer is not None:
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def step(self) -> None:
        """Double all parameters: as short as a step can be that changes each of them."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(2)

    def has_done(self, steps: int) -> bool:
        """Return True if the parameters are what so many steps have made of them."""
        ends = [parameter.detach().view(-1)[[0, -1]] for parameter in self.model.parameters()]
        return bool((torch.cat(ends) == 2.0**steps).all())

    def tensors(self) -> list[torch.Tensor]:
        """All of its state that takes room."""
        states = self.optimizer.state.values() if self.optimizer is not None else ()
        moments = [value for state in states for value in state.values()]
        return [tensor.detach() for tensor in (*self.model.parameters(), *moments) if tensor.numel() > 1]

    def state(self) -> dict[str, Any]:
        """For checkpoints."""
        optimizer = {"optimizer": self.optimizer.state_dict()} if self.optimizer is not None else {}
        return {"model": self.model.state_dict(), **optimizer}


def training(kind: str, size: int) -> Training:
    """One whose state has about ``size`` bytes of float32, once it has begun."""
    elements = size // 4 // (3 if kind == ADAMW else 1)
    model = nn.ParameterList([nn.Parameter(torch.ones(shape)) for shape in shapes(kind, elements)])
    return Training(model, torch.optim.AdamW(model.parameters(), lr=0.0) if kind == ADAMW else None)


def shapes(kind: str, elements: int) -> list[tuple[int, ...]]:
    """Of a few equal tensors; or of a transformer's 24 layers, and an embedding that takes what is left."""
    if kind == FEW:
        return [(elements // 4,)] * 4
    width = math.isqrt(elements // LAYERS // 13)  # 12 of them in matrices, some in vectors
    layer = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    vectors = [(3 * width,), (width,), (4 * width,), *[(width,)] * 5]
    found: list[tuple[int, ...]] = [*layer, *vectors] * LAYERS
    return [*found, (elements - sum(math.prod(shape) for shape in found),)]


def plain_copies(tensors: list[torch.Tensor]) -> list[float]:
    """Seconds of some plain copies into memory that is there, tensor by tensor."""
    targets = [torch.ones_like(tensor) for tensor in tensors]

    def copy() -> None:
        for target, tensor in zip(targets, tensors, strict=True):
            target.copy_(tensor)

    return [timed(copy) for _ in range(COPIES)]


def timed(act: Callable[[], object]) -> float:
    """Seconds that it takes."""
    begin = time.monotonic()
    act()
    return time.monotonic() - begin


@contextmanager
def peak() -> Iterator[list[int]]:
    """Bytes of memory that this process takes at most, beyond what it has already; filled in at the end."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before is taken anew
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is resident now
    before = rss()
    found: list[int] = []
    yield found
    found.append(rss_peak() - before)
