"""Workers add up a one each, by torch, Accelerate or Fabric; in the first life rank 1 then waits to be killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import torch
from report import RANK, report
from torch import distributed


def by_torch() -> Callable[[], float]:
    """With a process group of torch's."""
    distributed.init_process_group("gloo")

    def total() -> float:
        one = torch.ones(1)
        distributed.all_reduce(one)
        return one.item()

    return total


def by_accelerate() -> Callable[[], float]:
    """As a script of Accelerate's users does."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    return lambda: float(accelerator.reduce(torch.ones(1)).item())


def by_fabric() -> Callable[[], float]:
    """As a script of Fabric's users does; devices and nodes come from ``fabric run``."""
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu")
    return lambda: float(fabric.all_reduce(torch.ones(1), reduce_op="sum").item())


WAYS = {"torch": by_torch, "accelerate": by_accelerate, "fabric": by_fabric}


def main() -> None:
    """Meet, add up, wait or finish."""
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    total = WAYS[sys.argv[1]]()
    report("met", life=life, total=total(), ours="ELASTIC_RUN_UID" in os.environ)
    if life == 0 and RANK == 1:
        signal.pause()
    total()
    report("finished", life=life)
    if distributed.is_initialized():
        distributed.destroy_process_group()  # gloo's threads may abort a process that ends without


if __name__ == "__main__":
    main()
