"""The thread that writes checkpoints from copies of the state, while training goes on.

Training waits for the copy and nothing else. The memory of earlier copies is used again, since page faults of new
memory cost more than the copy.
"""

from __future__ import annotations

import contextlib
import copy
import queue
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

from elastic_torch.disk.errors import CheckpointError
from elastic_torch.state.host_memory import fill, like
from elastic_torch.version import Checkpoint

COPIES = 2  # one that is being written, and one that waits for it


class Writer:
    """Has copies of the state, and the thread that writes them, one after the other."""

    def __init__(self) -> None:
        self._spare: queue.LifoQueue[dict[str, Any] | None] = queue.LifoQueue()  # the last first: often one is enough
        for _ in range(COPIES):
            self._spare.put(None)
        self._thread = ThreadPoolExecutor(1, "elastic-checkpoint")  # the interpreter waits for it when it ends
        self._pending: list[Future[Checkpoint]] = []

    def copy(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Copy a state; waits until the memory of an earlier copy is free."""
        spare = self._spare.get()
        try:
            return snapshot(state, spare)
        except BaseException:
            self._spare.put(spare)
            raise

    def submit(self, write: Callable[[], Checkpoint], copied: dict[str, Any]) -> Future[Checkpoint]:
        """Have a copy written on the thread; after that its memory is free."""

        def act() -> Checkpoint:
            try:
                return write()
            finally:
                self._spare.put(copied)

        return self._follow(self._thread.submit(act))

    def refuse(self, error: CheckpointError) -> Future[Checkpoint]:
        """Return the future of a checkpoint that is not written, for this reason."""
        future: Future[Checkpoint] = Future()
        future.set_exception(error)
        return self._follow(future)

    def _follow(self, future: Future[Checkpoint]) -> Future[Checkpoint]:
        self._pending = [other for other in self._pending if not other.done()] + [future]
        return future

    def settle(self) -> None:
        """Wait until nothing is being written, whatever came of it."""
        for future in self._pending:
            with contextlib.suppress(CheckpointError):
                future.result()

    def wait(self) -> Checkpoint | None:
        """Wait until everything is written; the last one, or None where nothing was waited for.

        Raises:
            CheckpointError: The last one was not saved.
        """
        try:
            self.settle()
        finally:
            pending, self._pending = self._pending, []
        return pending[-1].result() if pending else None

    def close(self) -> None:
        """Wait until nothing is being written, and end the thread."""
        self.settle()
        self._thread.shutdown()


def snapshot(state: Mapping[str, Any], spare: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a copy of a state dict, its tensors in CPU memory.

    In nested dicts, lists and tuples are tensors (of DTensors the local part) and other values; what has a
    ``state_dict()`` at the top level is asked for it. The tensors of a ``spare`` copy are written over where they
    fit.
    """
    asked = {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state.items()}
    copies = _Copies()
    copied: dict[str, Any] = copies.of(asked, spare)
    fill(copies.targets, copies.sources)
    return copied


class _Copies:
    def __init__(self) -> None:
        self.targets: list[torch.Tensor] = []
        self.sources: list[torch.Tensor] = []

    def of(self, value: Any, spare: Any) -> Any:
        """Return a copy of a part of the state, in the memory of an earlier one where that fits."""
        if isinstance(value, torch.Tensor):
            return self._of_tensor(value.detach(), spare)
        if isinstance(value, Mapping):
            old = spare if isinstance(spare, Mapping) else {}
            return {key: self.of(item, old.get(key)) for key, item in value.items()}
        if type(value) in (list, tuple):
            old_items = spare if isinstance(spare, (list, tuple)) and len(spare) == len(value) else [None] * len(value)
            return type(value)(self.of(item, old) for item, old in zip(value, old_items, strict=True))
        return copy.deepcopy(value)

    def _of_tensor(self, tensor: torch.Tensor, spare: Any) -> torch.Tensor:
        if isinstance(spare, torch.Tensor) and _form(spare) == _form(tensor):
            target = spare
        elif type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_quantized:
            target = like(tensor)
        else:
            return tensor.to("cpu", copy=True)
        self.targets.append(_local(target))
        self.sources.append(_local(tensor))
        return target


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what two tensors must have in common for one to be written over the other."""
    local = _local(tensor)
    spread = (tensor.device_mesh, tensor.placements, tensor.shape) if isinstance(tensor, DTensor) else ()
    return (type(tensor), local.shape, local.dtype, local.stride(), local.layout, *spread)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of this rank that a tensor stands for."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
