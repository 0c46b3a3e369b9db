"""Copies of a state in host memory: how tensors get there from any device, and what makes that quick for a GPU's."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

_PORTABLE = 1  # ``cudaHostRegisterPortable``: pinned for all of the process, not for one device


def like(tensor: torch.Tensor) -> torch.Tensor:
    """Return new host memory for a copy of a dense tensor: of its type and shape; pinned if the tensor is a GPU's."""
    if tensor.is_cuda:
        with contextlib.suppress(RuntimeError):  # no more can be pinned
            return torch.empty_like(tensor, device="cpu", pin_memory=True)
    return torch.empty_like(tensor, device="cpu")


def fill(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source, on whatever device, into its target in host memory, and wait until all of them are there.

    Those of a GPU are queued behind all that the current stream was given before, so they have what the last step has
    left. They run without the host where the target is pinned.
    """
    gpus = set()
    for target, source in zip(targets, sources, strict=True):
        if source.is_cuda:
            gpus.add(source.device)
            target.copy_(source, non_blocking=True)
        else:
            target.copy_(source)
    for gpu in gpus:
        torch.cuda.current_stream(gpu).synchronize()


def pin(memory: torch.Tensor, gpu: torch.device) -> bool:
    """Let GPUs copy to and from memory that is there already; whether they can.

    Args:
        memory: All of a mapping, which stays until :func:`unpin`.
        gpu: One that the process uses; on another one, memory would be taken for that.
    """

    def register() -> bool:
        try:
            torch.cuda.set_device(gpu)  # for this thread
            return int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, _PORTABLE)) == 0
        except (AttributeError, RuntimeError):  # this build of torch, or this driver, cannot
            return False

    # CUDA keeps a thread's last error, and torch would take it for that of the thread's next kernel.
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(register).result()


def unpin(memory: torch.Tensor) -> None:
    """Take back what :func:`pin` has done, before the mapping goes."""
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())
