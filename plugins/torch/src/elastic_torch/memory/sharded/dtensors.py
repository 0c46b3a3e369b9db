"""The parts of DTensors: this rank's part, its place, and the layout of the same for another number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # as torch's checkpoints do

from elastic_torch.memory.sharded.plan import Box


@dataclass(frozen=True, slots=True)
class Leaf:
    """A sharded tensor of a state that was taken apart, as ``tree`` keeps it."""

    number: int  # of this rank's part among the tensors
    name: str  # its place in the state
    shape: tuple[int, ...]  # of the whole tensor
    offset: tuple[int, ...]  # where this rank's part begins in it
    placements: tuple[str | int, ...]
    """The layout over its mesh: ``"R"`` (replicated) or a dimension (sharded), one for each dimension of
    the mesh; ``"?"`` for what cannot be said so.
    """

    def box(self, part: torch.Tensor) -> Box:
        """Return this rank's part of the whole."""
        return Box(self.offset, tuple(part.shape))


def local_part(tensor: DTensor) -> torch.Tensor:
    """Return this rank's part of a tensor: the memory itself, without a gradient."""
    with torch.no_grad():
        return tensor.to_local()


def described(tensor: DTensor, where: str) -> Sequence[Any]:
    """Return its whole shape, the offset of this rank's part, and its layout, as values that JSON has.

    Raises:
        TypeError: It waits for a reduction, so that its parts are no values.
    """
    if any(placement.is_partial() for placement in tensor.placements):
        raise TypeError(f"{where} is a DTensor that has yet to be reduced (Partial), which cannot be kept.")
    return _described(tensor.shape, tensor.device_mesh, tensor.placements)


def box_of(tensor: DTensor) -> Box:
    """Return this rank's part of the whole."""
    size, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Box(tuple(offset), tuple(size))


def leaves(said: Any) -> list[Leaf]:
    """Return all sharded tensors of a state that was taken apart, by name."""
    return sorted(_leaves(said), key=lambda leaf: leaf.name)


def _leaves(said: Any) -> Iterator[Leaf]:
    match said:
        case {"shard": [number, name, shape, offset, placements]}:
            yield Leaf(int(number), str(name), tuple(shape), tuple(offset), tuple(placements))
        case list() | dict():
            for item in said.values() if isinstance(said, dict) else said:
                yield from _leaves(item)


def owners(where: str, optimizer: torch.optim.Optimizer) -> dict[str, DTensor]:
    """Return the sharded parameters that an optimizer's state belongs to, by the name of that state.

    ``where`` is the place of its ``state_dict()`` in the whole state.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {f"{where}['state'][{i}]": p for i, p in enumerate(parameters) if isinstance(p, DTensor)}


def target(leaf: Leaf, dtype: torch.dtype, present: Mapping[str, DTensor], owner: Mapping[str, DTensor]) -> DTensor:
    """Return the tensor to fill: the one of the state that is there, or a new one, laid out as this round's are.

    ``present`` has the sharded tensors that are there, by name; ``owner`` has parameters by the name of what
    belongs to them, since optimizers make their state only in their first step.

    Raises:
        ValueError: There is no place for it, or it has another shape.
    """
    there = present.get(leaf.name)
    if there is not None and tuple(there.shape) == leaf.shape:
        return there
    if there is not None:
        raise ValueError(f"{leaf.name} has the shape {leaf.shape} in the snapshot and {tuple(there.shape)} here.")
    like = owner.get(leaf.name.rpartition("[")[0])
    if like is None:
        raise ValueError(
            f"{leaf.name} is sharded in the snapshot, and here there is nothing that tells over what mesh."
        )
    placements = like.placements if tuple(like.shape) == leaf.shape else _placements(leaf, like.device_mesh)
    size, _ = compute_local_shape_and_global_offset(leaf.shape, like.device_mesh, placements)
    local = torch.zeros(size, dtype=dtype, device=local_part(like).device)
    return DTensor.from_local(
        local,
        like.device_mesh,
        placements,
        run_check=False,
        shape=torch.Size(leaf.shape),
        stride=torch.empty(leaf.shape, device="meta").stride(),
    )


@lru_cache(maxsize=1 << 16)  # asked for every tensor in every step
def _described(shape: torch.Size, mesh: DeviceMesh, placements: Sequence[Placement]) -> Sequence[Any]:
    _, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
    return list(shape), list(offset), [_said(placement) for placement in placements]


def forget() -> None:
    """Let go of the meshes that were asked about."""
    _described.cache_clear()


def _said(placement: Placement) -> str | int:
    if isinstance(placement, Replicate):
        return "R"
    return placement.dim if type(placement) is Shard else "?"


def _placements(leaf: Leaf, mesh: DeviceMesh) -> tuple[Placement, ...]:
    if len(leaf.placements) != mesh.ndim or "?" in leaf.placements:
        raise ValueError(
            f"{leaf.name} was laid out as {list(leaf.placements)} over its mesh, which this one of {mesh.ndim} "
            "dimension(s) cannot repeat."
        )
    return tuple(Replicate() if how == "R" else Shard(int(how)) for how in leaf.placements)
