"""Facts of torch, and of numpy beside it, about their process; the arguments are names of functions.

Two workers are also asked what they can do together, in their second life: in the first, one of them is killed.
"""

from __future__ import annotations

import io
import os
import random
import signal
import sys
import threading
import warnings
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tell import LIFE, RANK, tell
from threadpoolctl import threadpool_info  # type: ignore[import-untyped] # it has no annotations
from torch import multiprocessing


def threads() -> dict[str, Any]:
    """Return the threads that run once every user of threads has been called."""
    before = len(os.listdir("/proc/self/task"))
    torch.mm(torch.ones(300, 300), torch.ones(300, 300))
    np.ones((300, 300)) @ np.ones((300, 300))
    pools = threadpool_info()
    return {
        "torch": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "pools": sorted([pool["internal_api"], pool["num_threads"]] for pool in pools),
        "libraries": sorted({os.path.basename(pool["filepath"]) for pool in pools}),
        "variables": {name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")},
        "affinity": sorted(os.sched_getaffinity(0)),
        "tasks": [before, len(os.listdir("/proc/self/task"))],
        "info": torch.__config__.parallel_info(),
    }


def draws() -> dict[str, Any]:
    return {
        "torch": torch.rand(2).tolist(),
        "torch seed": torch.initial_seed(),
        "generator": torch.Generator().seed(),
        "numpy": float(np.random.random()),
        "numpy generator": float(np.random.default_rng().random()),
        "random": random.random(),
        "dropout": torch.nn.functional.dropout(torch.ones(64)).tolist(),
        "order": torch.randperm(100).tolist(),
        "weights": torch.nn.Linear(3, 3).weight.tolist(),
    }


def seeded() -> dict[str, Any]:
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    numbers = torch.utils.data.TensorDataset(torch.arange(12))
    order = torch.utils.data.DataLoader(numbers, batch_size=4, shuffle=True)
    return {
        **draws(),
        "generator": torch.Generator().manual_seed(5).initial_seed(),
        "numpy generator": float(np.random.default_rng(5).random()),
        "model": model(torch.ones(4)).tolist(),
        "batches": [batch.tolist() for (batch,) in order],
        "new generator": torch.Generator().initial_seed(),
    }


def state() -> dict[str, Any]:
    return {
        "dtype": str(torch.get_default_dtype()),
        "cuda": [torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.is_initialized()],
        "variables": {name: value for name, value in os.environ.items() if "CUDA" in name},
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "denormal": torch.set_flush_denormal(False),
        "sharing": multiprocessing.get_sharing_strategy(),
        "printing": repr(torch.tensor([1 / 3, 2e6])),
        "errors": np.geterr(),
        "options": np.get_printoptions()["precision"],
        "filters": [[str(part) for part in entry] for entry in warnings.filters],
        "threads": [thread.name for thread in threading.enumerate()],
        "path": sys.path,
        "initialized": dist.is_initialized(),
    }


def autograd() -> dict[str, Any]:
    found: dict[str, Any] = {}

    def work() -> None:
        weight = torch.full((3,), 2.0, requires_grad=True)
        (weight**3).sum().backward()
        found["gradient"] = None if weight.grad is None else weight.grad.tolist()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found


class Model(torch.nn.Module):
    """A module of the main program, so that saving it whole names that."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        return out


def saved() -> dict[str, Any]:
    torch.manual_seed(9)
    model, whole, weights = Model(), io.BytesIO(), io.BytesIO()
    torch.save(model, whole)
    torch.save(model.state_dict(), weights)
    whole.seek(0)
    weights.seek(0)
    loaded = torch.load(whole, weights_only=False)
    return {
        "type": [repr(type(loaded)), type(loaded) is Model],
        "same": torch.equal(loaded(torch.ones(2)), model(torch.ones(2))),
        "weights": {name: value.tolist() for name, value in torch.load(weights).items()},
        "size": len(whole.getvalue()),
    }


def together() -> dict[str, Any]:
    """An all-reduce, and a step of data-parallel training."""
    dist.init_process_group("gloo")
    summed = torch.arange(4.0) * (RANK + 1)
    dist.all_reduce(summed)
    torch.manual_seed(RANK)  # the first rank's weights go to all
    model = torch.nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.full((3, 2), float(RANK))).sum().backward()
    optimizer.step()
    group = dist.new_group([0, 1])
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, {"rank": RANK}, group=group)
    dist.barrier()
    dist.destroy_process_group()
    return {
        "life": LIFE,
        "sum": summed.tolist(),
        "model": {name: value.tolist() for name, value in model.state_dict().items()},
        "gathered": gathered,
    }


if __name__ == "__main__":
    tell(draws=draws())
    if "together" in sys.argv and LIFE == 0:
        dist.init_process_group("gloo")
        dist.barrier()  # both have told
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    for name in sys.argv[1:]:
        tell(**{name: globals()[name]()})
