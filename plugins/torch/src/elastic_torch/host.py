"""Host memory that copies of a state lie in: how it is taken, how copies get there, and what makes them quick.

What the kernel does for a page that is new to a process takes several times as long as to copy into it. So memory is
used again where it can be, taken in large pages where the kernel has some, and made ready beforehand.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence

import torch

CHUNK = 64 << 20
"""Bytes that :class:`Room` takes at once. What of them is not used is never touched, and so takes no memory."""
ALIGNED = 64
_PORTABLE = 1
"""``cudaHostRegisterPortable``: pinned for all of the process, not for one device."""


class Room:
    """New host memory for copies of tensors. Small ones share pieces of it; a piece goes with the last of its tensors.

    A page of 2 MiB is ready four times as soon as its 512 small ones (Linux 6.18).
    """

    def __init__(self) -> None:
        self._piece: mmap.mmap | None = None
        self._used = 0

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a dense tensor on any device; waits until it is there."""
        copied = self.like(tensor)
        fill([copied], [tensor])
        return copied

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory for a copy of a dense tensor: of its type, shape and order of elements. Pinned if that is a GPU's."""
        if tensor.is_cuda:
            with contextlib.suppress(RuntimeError):  # no more can be pinned
                return torch.empty_like(tensor, device="cpu", pin_memory=True)
        if (count := tensor.numel()) == 0:
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        piece, place = self._take(tensor.nbytes)
        flat = torch.frombuffer(piece, dtype=tensor.dtype, count=count, offset=place)
        if tensor.is_contiguous():
            return flat.view(tensor.shape)
        form = torch.empty_like(tensor, device="meta")
        return flat.as_strided(form.shape, form.stride())

    def _take(self, size: int) -> tuple[mmap.mmap, int]:
        """So many bytes: of which piece, a new one where the last has too few, and from where on."""
        piece, place = self._piece, self._used
        if piece is None or place + size > len(piece):
            piece, place = mmap.mmap(-1, max(size, CHUNK), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), 0
            with contextlib.suppress(OSError):  # a kernel without them
                piece.madvise(mmap.MADV_HUGEPAGE)
        self._piece, self._used = piece, place + math.ceil(size / ALIGNED) * ALIGNED
        return piece, place


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
    """Let GPUs copy to and from memory that is there already; whether they can. Called on a thread of its own.

    Args:
        memory: All of a mapping, which stays until :func:`unpin`.
        gpu: One that the process uses; on another one, memory would be taken for that.
    """
    try:
        torch.cuda.set_device(gpu)  # for this thread
        return int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, _PORTABLE)) == 0
    except (AttributeError, RuntimeError):  # this build of torch, or this driver, cannot
        return False


def unpin(memory: torch.Tensor) -> None:
    """Take back what :func:`pin` has done, before the mapping goes."""
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())
