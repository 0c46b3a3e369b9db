"""The memory tier of a state that every rank has in full, as with DDP. ``sharded.tier`` has that of sharded states."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from elastic_torch.memory.buffers import Buffers
from elastic_torch.memory.snapshot import HEADER_BYTES, Buffer
from elastic_torch.memory.tier import MemoryTier, State, TakenState
from elastic_torch.state.components import Components
from elastic_torch.state.state_choice import Choice, Tier, choose
from elastic_torch.state.state_exchange import PART, Peers
from elastic_torch.state.state_tree import put_together, take_apart
from elastic_torch.version import Stamp


def memory_tier(common: Components, name: str, local_rank: int, replicate_every: int, peers: Peers) -> MemoryTier:
    """Return the one for this model. Only what is sharded needs what that imports."""
    if not any(hasattr(parameter, "placements") for parameter in common.model.parameters()):
        return ReplicatedMemory(name, local_rank, peers)
    from elastic_torch.memory.sharded.tier import ShardedMemory

    parts = {**common.parts, "extra": common.extra}
    return ShardedMemory(common.model, parts, name, local_rank, replicate_every, peers)


class ReplicatedMemory(MemoryTier):
    """The memory tier of a state of which each rank keeps all.

    Args:
        name: Of the state.
        local_rank: The worker's number on its node.
        peers: All ranks.
    """

    def __init__(self, name: str, local_rank: int, peers: Peers) -> None:
        super().__init__(Buffers(name, local_rank), peers)
        self._choice: Choice | None = None

    def meet(self) -> Stamp | None:
        """Agree on the newest snapshot that all ranks have which have any."""
        self._choice = choose(self._peers.gather_stamps(self._buffers.stamps()))
        return None if self._choice is None else self._choice.stamp

    def take(self, state: State) -> TakenState:
        """Return that snapshot, from this rank's memory; a rank without it gets it from another one first."""
        assert self._choice is not None
        choice, stamp = self._choice, self._choice.stamp
        if choice.without:
            hand_over(choice.source, choice.without, lambda: self._buffers.buffer(stamp), self._buffers.room)
        snapshot = self._buffers.snapshot(stamp)
        model, rest = snapshot.said  # the model copies what it is given, others may take it as it is
        others = put_together(rest, lambda number: snapshot.views[number].clone())
        tier = choice.tier(self._peers.rank)
        own = tier is Tier.MEMORY and (stamp.round > 0 or self._peers.world == 1)  # a file may be any rank's
        return TakenState(put_together(model, snapshot.views.__getitem__), others, own, tier)

    def keep(self, stamp: Stamp, state: State) -> None:
        """Copy all of the state into the buffer that does not hold the newest snapshot."""
        if self._buffers.outlives:
            self._buffers.keep(stamp, *take_apart(state()))

    def has(self, stamp: Stamp) -> bool:
        """Whether all ranks would go on from this snapshot: a rank whose agent keeps nothing gets it from another."""
        choice = choose(self._peers.gather_stamps(self._buffers.stamps() if self._buffers.outlives else ()))
        if choice is None or choice.stamp != stamp:
            return False
        if not self._buffers.outlives:
            self._buffers.forget()  # an older one that the others still have would be taken for one that all have
        return True


def hand_over(source: int, to: Sequence[int], have: Callable[[], Buffer], room: Callable[[int], Buffer]) -> None:
    """Bring a snapshot from one rank to others. All ranks of the process group call it with the same ranks.

    Args:
        source: The rank that has it.
        to: Those that get it.
        have: Called at the source: its buffer.
        room: Called at the others, with the number of bytes that it must have room for.
    """
    group = dist.new_group(sorted([source, *to]), backend="gloo")
    rank = dist.get_rank()
    if rank != source and rank not in to:
        return
    size = torch.zeros(1, dtype=torch.int64)
    buffer = have() if rank == source else None
    if buffer is not None:
        size.fill_(buffer.used())
    dist.broadcast(size, source, group=group)
    if buffer is None:
        buffer = room(int(size))
        buffer.begin()
    content = buffer.bytes()
    for start in range(HEADER_BYTES, int(size), PART):
        dist.broadcast(content[start : min(start + PART, int(size))], source, group=group)
    header = buffer.header()
    dist.broadcast(header, source, group=group)
    if rank != source:
        buffer.finish(header)
    dist.destroy_process_group(group)
