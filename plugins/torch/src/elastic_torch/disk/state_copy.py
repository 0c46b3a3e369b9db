"""A copy of the state in this host's memory, from which a checkpoint is written while training goes on.

Training waits for this copy and nothing else. The memory of earlier copies is used again, since page faults of new
memory cost more than the copy.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

from elastic_torch.state.host_memory import fill, like


def snapshot(state: Mapping[str, Any], spare: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a copy of a state dict, its tensors in CPU memory.

    Args:
        state: Nested dicts, lists and tuples of tensors (DTensors too, of which the local part is copied) and other
            values; what has a ``state_dict()`` at the top level is asked for it, as torch's checkpoints do.
        spare: An earlier copy that is not used any more; its tensors are written over where they fit.
    """
    asked = {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state.items()}
    copies = _Copies()
    copied: dict[str, Any] = copies.of(asked, spare)
    fill(copies.targets, copies.sources)
    return copied


class _Copies:
    """Copies whose tensors are still to be filled: all at once, since those of a GPU need not wait for each other."""

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


def is_scattered(state: Any, together: frozenset[int]) -> bool:
    """Whether some tensor lies on ranks besides ``together`` (global ranks), each of which has a part of it."""
    if isinstance(state, DTensor):
        # A tensor that every rank has whole would be scattered all the same: torch saves it from one rank only.
        return not {int(rank) for rank in state.device_mesh.mesh.flatten()} <= together
    if isinstance(state, Mapping):
        return any(is_scattered(item, together) for item in state.values())
    return isinstance(state, (list, tuple)) and any(is_scattered(item, together) for item in state)
