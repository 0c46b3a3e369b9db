"""Fetches the parts of a sharded state that this rank needs from the ranks that have them.

All ranks go through the same steps. First the ranks that lack them are sent the state's tree and the tensors that are
not sharded. Where each rank then has the very parts that it needs, as after a worker's death, they are
copied and nothing else happens. Else all tell each other which parts they had and which they need, and work out one and
the same plan (``plan.pieces``).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from elastic_torch.memory.sharded.dtensors import Leaf, box_of, leaves, local_part, target
from elastic_torch.memory.sharded.plan import Box, FoundState, Piece, pieces, windows
from elastic_torch.memory.snapshot import Snapshot
from elastic_torch.state.state_exchange import PART, Transport
from elastic_torch.state.state_tree import bytes_of, joined, parted, table_of, tensors_of

Present = Mapping[str, DTensor]


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
    are filled in place.

    Raises:
        ValueError: The snapshot does not fit the model.
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
    return [
        (snapshot.views[leaf.number], leaf.box(snapshot.views[leaf.number])) for leaf in leaves(snapshot.said["tree"])
    ]


def _plain(snapshot: Snapshot) -> list[int]:
    sharded = {leaf.number for leaf in leaves(snapshot.said["tree"])}
    return [number for number in range(len(snapshot.views)) if number not in sharded]


def _content(snapshot: Snapshot) -> torch.Tensor:
    """Return a snapshot's tree, and all tensors that are not sharded, as bytes."""
    return joined([snapshot.said["tree"], table_of(snapshot.views)], [snapshot.views[n] for n in _plain(snapshot)])


def _put(tensor: DTensor, whole: Box, box: Box, content: torch.Tensor) -> None:
    local_part(tensor)[box.within(whole)].copy_(content)
