"""A function that torch compiles, in C++."""

from __future__ import annotations

import torch
from tell import tell


@torch.compile
def function(x: torch.Tensor) -> torch.Tensor:
    """Several operations that become one."""
    return torch.sin(x) ** 2 + torch.cos(x) ** 2 + x


if __name__ == "__main__":
    values = function(torch.linspace(0, 1, 8)).tolist()
    counted = dict(torch._dynamo.utils.counters["frames"])
    tell(values=values, frames=counted, generated=torch._inductor.metrics.generated_kernel_count)
