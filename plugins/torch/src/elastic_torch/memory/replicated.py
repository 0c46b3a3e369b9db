"""The memory tier of a state that every rank has in full, as with DDP: what ``TrainState`` talks to.

``sharded.tier`` has the one of sharded states, with the same methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from elastic_torch.memory.buffers import Memory
from elastic_torch.memory.snapshot import HEADER_BYTES, Slot, Snapshot
from elastic_torch.state.components import Components
from elastic_torch.state.disk_tier import DiskTier, Loaded
from elastic_torch.state.state_choice import Choice, Tier, choose
from elastic_torch.state.state_exchange import PART, Peers
from elastic_torch.state.state_tree import put_together, take_apart
from elastic_torch.version import Stamp

State = Callable[[], Any]
"""All of a state as it is: the model's, and a mapping of everything else."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A state that is gone on from. Tensors may be views of shared memory: only those of the model.

    Attributes:
        model: The model's.
        rest: Everything else.
        whole: Whether that is what this very rank had kept, random numbers and all.
        tier: Where it comes from.
    """

    model: Mapping[str, Any]
    rest: Mapping[str, Any]
    whole: bool
    tier: Tier


class MemoryTier(Protocol):
    """Snapshots in memory that the agents hold. Every method but ``named`` is for all ranks together."""

    def meet(self) -> Stamp | None:
        """What all ranks would go on from, if there is anything."""

    def take(self, state: State) -> Taken:
        """That, for this rank; after :meth:`meet` has found it."""

    def go_on(self, stamp: Stamp, state: State) -> None:
        """Everybody has its state, wherever from: the end of restoring."""

    def adopt(self, stamp: Stamp, snapshot: Snapshot) -> None:
        """Keep one that was read from a file; before another :meth:`meet`."""

    def keep(self, stamp: Stamp, state: State) -> None:
        """Keep it; training waits until it has been copied."""

    def has(self, stamp: Stamp) -> bool:
        """Whether all ranks have kept that."""

    def leave(self) -> None:
        """A node leaves after this step: see to it that it takes nothing along that the others do not have."""

    def replicated(self) -> Stamp | None:
        """The newest of this round that survives the loss of a node, as far as it is this tier's to see to that."""

    def named(self, state: dict[str, Any]) -> dict[str, Any]:
        """A state as checkpoints have it."""

    def take_over(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make ready to load what :meth:`named` has returned."""

    def load(self, disk: DiskTier, state: State) -> Loaded | None:
        """The newest intact checkpoint, as this rank needs it."""


def memory_tier(common: Components, name: str, local_rank: int, replicate_every: int, peers: Peers) -> MemoryTier:
    """The one for this model. Only what is sharded needs what that imports."""
    if not any(hasattr(parameter, "placements") for parameter in common.model.parameters()):
        return Whole(name, local_rank, peers)
    from elastic_torch.memory.sharded.tier import Shards

    parts = {**common.parts, "extra": common.extra}
    return Shards(common.model, parts, name, local_rank, replicate_every, peers)


class Whole:
    """The memory tier of a state of which each rank keeps all.

    Args:
        name: Of the state.
        local_rank: The worker's number on its node.
        peers: All ranks.
    """

    def __init__(self, name: str, local_rank: int, peers: Peers) -> None:
        self._peers = peers
        self._memory = Memory(name, local_rank)
        self._choice: Choice | None = None

    def meet(self) -> Stamp | None:
        """The newest snapshot that everybody has who has any."""
        self._choice = choose(self._peers.gather_stamps(self._memory.stamps()))
        return None if self._choice is None else self._choice.stamp

    def take(self, state: State) -> Taken:
        """It, from this rank's memory; brought there from another's, if need be."""
        assert self._choice is not None
        choice, stamp = self._choice, self._choice.stamp
        if choice.without:
            hand_over(choice.source, choice.without, lambda: self._memory.slot(stamp), self._memory.room)
        snapshot = self._memory.snapshot(stamp)
        model, rest = snapshot.said  # the model copies what it is given, others may take it as it is
        others = put_together(rest, lambda number: snapshot.views[number].clone())
        tier = choice.tier(self._peers.rank)
        own = tier is Tier.MEMORY and (stamp.round > 0 or self._peers.world == 1)  # a file may be any rank's
        return Taken(put_together(model, snapshot.views.__getitem__), others, own, tier)

    def go_on(self, stamp: Stamp, state: State) -> None:
        """Nothing is left to do."""

    def adopt(self, stamp: Stamp, snapshot: Snapshot) -> None:
        """Copy it into a slot."""
        self._memory.keep(stamp, snapshot.said, list(snapshot.views))

    def keep(self, stamp: Stamp, state: State) -> None:
        """Copy all of it into the slot that does not hold the newest."""
        if self._memory.outlives:
            self._memory.keep(stamp, *take_apart(state()))

    def has(self, stamp: Stamp) -> bool:
        """Whether this is what all ranks would go on from: of a rank whose agent does not keep it, another one has."""
        choice = choose(self._peers.gather_stamps(self._memory.stamps() if self._memory.outlives else ()))
        if choice is None or choice.stamp != stamp:
            return False
        if not self._memory.outlives:
            self._memory.forget()  # one that is older, and the others still have, would be taken for what all have
        return True

    def leave(self) -> None:
        """Every rank has all of it."""

    def replicated(self) -> Stamp | None:
        """Every rank has all of it."""
        return None

    def named(self, state: dict[str, Any]) -> dict[str, Any]:
        """As it is."""
        return state

    def take_over(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """As it is."""
        return state

    def load(self, disk: DiskTier, state: State) -> Loaded | None:
        """All that was saved."""
        return disk.load()


def hand_over(source: int, to: Sequence[int], have: Callable[[], Slot], room: Callable[[int], Slot]) -> None:
    """Bring a snapshot from one rank to others. All ranks of the process group call it with the same ranks.

    Args:
        source: The rank that has it.
        to: Those that get it.
        have: Called at the source: its slot.
        room: Called at the others, with the number of bytes that it must have room for.
    """
    group = dist.new_group(sorted([source, *to]), backend="gloo")
    rank = dist.get_rank()
    if rank != source and rank not in to:
        return
    size = torch.zeros(1, dtype=torch.int64)
    slot = have() if rank == source else None
    if slot is not None:
        size.fill_(slot.used())
    dist.broadcast(size, source, group=group)
    if slot is None:
        slot = room(int(size))
        slot.begin()
    content = slot.bytes()
    for start in range(HEADER_BYTES, int(size), PART):
        dist.broadcast(content[start : min(start + PART, int(size))], source, group=group)
    header = slot.header()
    dist.broadcast(header, source, group=group)
    if rank != source:
        slot.finish(header)
    dist.destroy_process_group(group)
