"""Processes that torch starts: workers of data loaders, and those of torch.multiprocessing."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from tell import tell
from torch.multiprocessing.spawn import start_processes
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Numbers(Dataset[Any]):
    """A data set of the main program; each item says a little of the process that it comes from."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        return torch.tensor([index, info.id, torch.get_num_threads()]), torch.rand(1)


def load(method: str) -> dict[str, Any]:
    torch.manual_seed(1)
    loader = DataLoader(Numbers(), batch_size=3, shuffle=True, num_workers=1, multiprocessing_context=method)
    return {"batches": [[part.tolist() for part in batch] for batch in loader]}


def add(index: int, shared: torch.Tensor) -> None:
    shared[index] += 1 + index + int(os.environ["RANK"])


def spawn(method: str) -> dict[str, Any]:
    shared = torch.zeros(2).share_memory_()
    start_processes(add, (shared,), nprocs=1, start_method=method)
    return {"shared": shared.tolist(), "is shared": shared.is_shared()}


if __name__ == "__main__":
    for what in sys.argv[1:]:
        function, method = what.split(" by ")
        tell(**{what: {"load": load, "spawn": spawn}[function](method)})
