"""The parts of DTensors: this rank's part and its place, and how a rank gets the parts that it needs from others.

All ranks go through the same steps (:func:`bring`). First the ranks that lack them are sent the state's tree and the
tensors that are not sharded. Where each rank then has the very parts that it needs, as after a worker's death, they are
copied and nothing else happens. Else all tell each other which parts they had and which they need, and work out one and
the same plan (``plan.pieces``).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # as torch's checkpoints do

from elastic_torch.memory.buffers import Snapshot
from elastic_torch.memory.sharded.plan import Box, FoundState, Piece, pieces, windows
from elastic_torch.state.state_exchange import PART, Transport
from elastic_torch.state.state_tree import bytes_of, joined, parted, table_of, tensors_of

Present = Mapping[str, DTensor]


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
    """Return whole shape, this rank's offset, and layout, for JSON; raise TypeError if it is yet to be reduced."""
    if any(placement.is_partial() for placement in tensor.placements):
        raise TypeError(f"{where} is a DTensor that has yet to be reduced (Partial), which cannot be kept.")
    return layout_of(tensor.shape, tensor.device_mesh, tensor.placements)


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


def target(leaf: Leaf, dtype: torch.dtype, present: Present, owner: Present) -> DTensor:
    """Return the tensor to fill: the one of the state that is there, or a new one, laid out as this round's are.

    ``present`` has the sharded tensors that are there, by name; ``owner`` has parameters by the name of what
    belongs to them, since optimizers make their state only in their first step.
    Raises ValueError where there is no place for it, or it has another shape.
    """
    if (there := present.get(leaf.name)) is not None:
        if tuple(there.shape) != leaf.shape:
            raise ValueError(f"{leaf.name} has the shape {leaf.shape} in the snapshot and {tuple(there.shape)} here.")
        return there
    like = owner.get(leaf.name.rpartition("[")[0])
    if like is None:
        raise ValueError(
            f"{leaf.name} is sharded in the snapshot, and here there is nothing that tells over what mesh."
        )
    placements = like.placements if tuple(like.shape) == leaf.shape else _placements(leaf, like.device_mesh)
    size, _ = compute_local_shape_and_global_offset(leaf.shape, like.device_mesh, placements)
    local = torch.zeros(size, dtype=dtype, device=local_part(like).device)
    whole = torch.empty(leaf.shape, device="meta")
    return DTensor.from_local(
        local, like.device_mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


@lru_cache(maxsize=1 << 16)  # asked for every tensor in every step
def layout_of(shape: torch.Size, mesh: DeviceMesh, placements: Sequence[Placement]) -> Sequence[Any]:
    """Return the shape, the offset of this rank's part, and the layout, as values that JSON has."""
    _, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
    return list(shape), list(offset), [_said(placement) for placement in placements]


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


@dataclass(frozen=True, slots=True)
class Brought:
    """The state, as this rank has it now."""

    said: Any  # its tree
    plain: Mapping[int, torch.Tensor]  # the tensors that are not sharded, by number; views of shared memory, perhaps
    shards: Mapping[str, DTensor]  # those that are, by name, already filled
    whole: bool  # whether the tree is that of this very rank in the same world, random numbers and all
    local: bool  # whether all of it was in this rank's reach
    exact: bool  # whether each rank had the very parts that it needs


def bring(
    transport: Transport, found: FoundState, mine: Mapping[int, Snapshot], present: Present, owner: Present
) -> Brought:
    """Bring the parts of a found state to the ranks that need them. Collective.

    ``mine`` has the snapshots of the state that this rank can reach, by old rank. The tensors that are ``present``
    are filled in place. Raises ValueError where the snapshot does not fit the model.
    """
    base = found.base(transport.rank, transport.world)
    said, dtypes, plain = _bring_base(transport, found, mine)
    sharded = leaves(said)
    targets = [target(leaf, dtypes[leaf.number], present, owner) for leaf in sharded]
    needed = [box_of(tensor) for tensor in targets]
    names = zlib.crc32(json.dumps([[leaf.name, leaf.shape] for leaf in sharded]).encode())
    had = _parts(mine[base]) if base in mine else []
    fits = [box for _, box in had] == needed
    dimensions = max((len(leaf.shape) for leaf in sharded), default=0)
    answers = transport.gather([int(fits), len(sharded), dimensions, names])
    if any(answer[1:] != answers[0][1:] for answer in answers):
        raise ValueError("The ranks' states do not have the same sharded tensors, so they cannot go on together.")
    exact = all(answer[0] for answer in answers)
    if exact:
        for tensor, (part, _) in zip(targets, had, strict=True):
            local_part(tensor).copy_(part)
        local = True
    else:
        local = _reshard(transport, found, mine, sharded, targets, needed)
    shards = {leaf.name: tensor for leaf, tensor in zip(sharded, targets, strict=True)}
    return Brought(said, plain, shards, transport.world == found.world, local and base in mine, exact)


def _bring_base(
    transport: Transport, found: FoundState, mine: Mapping[int, Snapshot]
) -> tuple[Any, list[torch.dtype], dict[int, torch.Tensor]]:
    """Return the tree, the types of its tensors, and those that are not sharded: this rank's, or another one's."""
    bases = [found.base(rank, transport.world) for rank in range(transport.world)]
    givers = [found.giver(old, rank) for rank, old in enumerate(bases)]
    takers = [rank for rank, giver in enumerate(givers) if giver == transport.rank != rank]
    contents = {old: _content(mine[old]) for old in {bases[rank] for rank in takers}}
    giver, size = givers[transport.rank], torch.zeros(1, dtype=torch.int64)
    sources = [giver] if giver != transport.rank else []
    sizes = [(to, torch.tensor([len(contents[bases[to]])]).view(torch.uint8)) for to in takers]
    transport.exchange(sizes, [(source, size.view(torch.uint8)) for source in sources])
    content = torch.empty(int(size), dtype=torch.uint8)
    transport.exchange([(to, contents[bases[to]]) for to in takers], [(source, content) for source in sources])
    if giver == transport.rank:
        own = mine[bases[transport.rank]]
        plain = {number: own.views[number] for number in _plain(own)}
        return own.said["tree"], [view.dtype for view in own.views], plain
    (said, table), elements = parted(content)
    sharded = {leaf.number for leaf in leaves(said)}
    whole = {number: entry for number, entry in enumerate(table) if number not in sharded}
    tensors = tensors_of(whole.values(), elements)
    return said, [getattr(torch, name) for name, _ in table], dict(zip(whole, tensors, strict=True))


def _reshard(
    transport: Transport,
    found: FoundState,
    mine: Mapping[int, Snapshot],
    sharded: Sequence[Leaf],
    targets: Sequence[DTensor],
    needed: Sequence[Box],
) -> bool:
    """Fill this rank's parts with pieces of the old ones; whether all were in its reach."""
    dimensions = [len(leaf.shape) for leaf in sharded]
    parts = {old: _parts(snapshot) for old, snapshot in mine.items()}
    told = {old: [box for _, box in its] for old, its in parts.items() if found.holders[old][0] == transport.rank}
    had = _table(transport, found.world, told, dimensions)
    need = _table(transport, transport.world, {transport.rank: needed}, dimensions)
    sizes = [tensor.numel() * tensor.element_size() // transport.world for tensor in targets]
    missing = [box.elements for box in needed]
    local = True
    for window in windows(sizes, PART):
        give: dict[int, list[torch.Tensor]] = {}
        take: dict[int, list[Piece]] = {}
        for piece in pieces(found, had, need, transport.rank, window):
            if piece.taker == transport.rank:
                missing[piece.tensor] -= piece.box.elements
            if piece.giver != transport.rank:
                take.setdefault(piece.giver, []).append(piece)
                continue
            part, box = parts[piece.old][piece.tensor]
            content = part[piece.box.within(box)]
            if piece.taker == transport.rank:
                _put(targets[piece.tensor], needed[piece.tensor], piece.box, content)
            else:
                give.setdefault(piece.taker, []).append(bytes_of(content.contiguous()))
        local = local and not take
        packed = {
            giver: torch.empty(
                sum(piece.box.elements * targets[piece.tensor].element_size() for piece in its), dtype=torch.uint8
            )
            for giver, its in take.items()
        }
        transport.exchange([(to, torch.cat(its)) for to, its in give.items()], packed.items())
        for giver, its in take.items():
            table = [(str(targets[piece.tensor].dtype).removeprefix("torch."), piece.box.size) for piece in its]
            for piece, content in zip(its, tensors_of(table, packed[giver]), strict=True):
                _put(targets[piece.tensor], needed[piece.tensor], piece.box, content)
    for leaf, elements in zip(sharded, missing, strict=True):
        if elements:
            raise ValueError(f"The parts of {leaf.name} that were kept do not make up what this rank needs of it.")
    return local


def _table(
    transport: Transport, ranks: int, mine: Mapping[int, Sequence[Box]], dimensions: Sequence[int]
) -> list[list[Box]]:
    """Return the boxes of all ranks, by rank and tensor. Each row is told by one rank, in ``mine``. Collective."""
    table = torch.zeros(ranks, len(dimensions), 2, max(dimensions, default=1) or 1, dtype=torch.int64)
    for rank, boxes in mine.items():
        for number, box in enumerate(boxes):
            table[rank, number, :, : dimensions[number]] = torch.tensor([box.offset, box.size])
    return [
        [Box(tuple(offset[:count]), tuple(size[:count])) for (offset, size), count in zip(row, dimensions, strict=True)]
        for row in transport.add_up(table).tolist()
    ]


def _parts(snapshot: Snapshot) -> list[tuple[torch.Tensor, Box]]:
    """Return the sharded parts that a snapshot has, by name, and where they lie."""
    found = [(leaf, snapshot.views[leaf.number]) for leaf in leaves(snapshot.said["tree"])]
    return [(part, leaf.box(part)) for leaf, part in found]


def _plain(snapshot: Snapshot) -> list[int]:
    sharded = {leaf.number for leaf in leaves(snapshot.said["tree"])}
    return [number for number in range(len(snapshot.views)) if number not in sharded]


def _content(snapshot: Snapshot) -> torch.Tensor:
    """Return a snapshot's tree, and all tensors that are not sharded, as bytes."""
    return joined([snapshot.said["tree"], table_of(snapshot.views)], [snapshot.views[n] for n in _plain(snapshot)])


def _put(tensor: DTensor, whole: Box, box: Box, content: torch.Tensor) -> None:
    local_part(tensor)[box.within(whole)].copy_(content)
