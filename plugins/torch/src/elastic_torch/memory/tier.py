"""The memory tier: what ``TrainState`` asks of the snapshots in memory that the agents hold, and which one all take.

``MemoryTier`` is that of a state that every rank has in full, as with DDP; ``sharded.tier`` has that of sharded states.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from elastic_core.errors import ResourceError
from elastic_torch.memory.buffers import HEADER_BYTES, Buffers, Snapshot, leave_note, read_note
from elastic_torch.memory.fd_store import release
from elastic_torch.state.checkpoints import AnyLoaded, DiskTier
from elastic_torch.state.components import Components
from elastic_torch.state.state_exchange import PART, Peers
from elastic_torch.state.state_tree import put_together, take_apart
from elastic_torch.version import Stamp

State = Callable[[], Any]  # returns all of a state: the model's, and a mapping of everything else


@dataclass(frozen=True, slots=True)
class TakenState:
    """The state of a snapshot. Of its tensors only those of the model may be views of shared memory."""

    model: Mapping[str, Any]
    rest: Mapping[str, Any]
    whole: bool  # true if this rank itself has kept all of it, its random generators too
    tier: Tier


class MemoryTier:
    """The snapshots of a state that each rank has in full.

    Every method but :meth:`named` and :meth:`take_over` is for all ranks together.
    """

    whole = True  # true if each rank has all of the state

    def __init__(self, buffers: Buffers, peers: Peers) -> None:
        self._buffers, self._peers = buffers, peers
        self._choice: Choice | None = None
        self._taken = False
        self._mark = f"{buffers.prefix}/began"
        """The name of the note that holds the round if it began with a state from disk, or anew.

        The agent keeps it until the first commit is over. A worker that is killed in that commit has no snapshot:
        without the note it would look like a new rank, and would get the state of another one, with new random numbers.
        """
        self._marked = False  # the note of this round is there

    def meet(self) -> Stamp | None:
        """Return the newest snapshot that every rank with snapshots has."""
        offers = self._peers.gather_stamps(self._buffers.stamps())
        began = read_note(self._mark)
        rounds = cut_short(offers, self._peers.gather_json(None if began is None else int(began)))
        self._buffers.drop(lambda stamp: stamp.round in rounds)
        self._choice = choose(offers, rounds)
        return None if self._choice is None else self._choice.stamp

    def take(self, state: State) -> TakenState:
        """Return that snapshot, from this rank's memory; a rank without it gets it from another one first."""
        assert self._choice is not None
        choice, stamp, self._taken = self._choice, self._choice.stamp, True
        if choice.without:
            hand_over(choice, self._buffers)
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
        if self._marked:
            release(self._mark)
            self._marked = False

    def take_back(self, stamp: Stamp) -> None:
        """Let go of this snapshot, if it is here: the one before it is the newest."""
        self._buffers.drop(lambda kept: kept == stamp)

    def has(self, stamp: Stamp) -> bool:
        """Return True if all ranks would restore this snapshot: a rank whose agent keeps none gets it from another."""
        choice = choose(self._peers.gather_stamps(self._buffers.stamps() if self._buffers.outlives else ()))
        if choice is None or choice.stamp != stamp:
            return False
        if not self._buffers.outlives:
            self._buffers.forget()  # an older one that the others still have would be taken for one that all have
        return True

    def adopt(self, stamp: Stamp, snapshot: Snapshot) -> None:
        """Copy a snapshot that was read from a file into a buffer; before another :meth:`meet`."""
        self._buffers.keep(stamp, snapshot.said, list(snapshot.views))

    def go_on(self, stamp: Stamp, state: State) -> None:
        """End the restoring: all ranks have their state, wherever from."""
        choice = self._choice if self._taken else None
        if choice is None and self._buffers.outlives:
            with contextlib.suppress(ResourceError):  # the first commit says that the agent keeps nothing
                leave_note(self._mark, b"%d" % stamp.round)
            self._marked = True
        elif choice is not None and choice.tier(self._peers.rank) is Tier.PEER:
            buffer = self._buffers.buffer_of(choice.stamp)
            assert buffer is not None
            buffer.write(choice.stamp, *take_apart(state()))  # with this rank's generators

    def leave(self) -> None:
        """Wait until other nodes have all that this node has: a node leaves after this step."""

    def replicated(self) -> Stamp | None:
        """Return the newest snapshot of this round that another node has a replica of; None without replicas."""
        return None

    def named(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a state as checkpoints have it."""
        return state

    def take_over(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make ready to load what :meth:`named` has returned."""
        return state

    def load(self, disk: DiskTier, state: State) -> AnyLoaded | None:
        """Return the newest intact checkpoint, as this rank needs it."""
        return disk.load()


def memory_tier(common: Components, name: str, local_rank: int, replicate_every: int, peers: Peers) -> MemoryTier:
    """Return the one for this model. Only what is sharded needs what that imports."""
    if not any(hasattr(parameter, "placements") for parameter in common.model.parameters()):
        return MemoryTier(Buffers(name, local_rank), peers)
    from elastic_torch.memory.sharded.tier import ShardedMemory

    return ShardedMemory(common, name, local_rank, replicate_every, peers)


def hand_over(choice: Choice, buffers: Buffers) -> None:
    """Bring the chosen snapshot from the rank that has it to those without it. All ranks call it with the same choice.

    It is a broadcast and no ``Transport.exchange``: where many nodes come at once, those that have a part pass it on.
    """
    group = dist.new_group(sorted([choice.source, *choice.without]), backend="gloo")
    source, rank = choice.source, dist.get_rank()
    if rank != source and rank not in choice.without:
        return
    buffer = buffers.buffer_of(choice.stamp) if rank == source else None
    assert (buffer is None) == (rank != source)
    size = torch.tensor([0 if buffer is None else buffer.used()])
    dist.broadcast(size, source, group=group)
    if buffer is None:
        buffer = buffers.room(int(size))
    content = buffer.bytes()
    for start in range(HEADER_BYTES, int(size), PART):
        dist.broadcast(content[start : min(start + PART, int(size))], source, group=group)
    header = buffer.header()
    dist.broadcast(header, source, group=group)
    if rank != source:
        buffer.finish(header, choice.stamp)
    dist.destroy_process_group(group)


class Tier(enum.Enum):
    """The source of a rank's state."""

    MEMORY = "memory"  # a snapshot that this node's agent has kept for it
    PEER = "peer"  # another rank's snapshot
    DISK = "disk"  # a checkpoint
    RESCUED = "rescued"  # a snapshot that was written out when the run before had failed


@dataclass(frozen=True, slots=True)
class Choice:
    """The snapshot that all go on from."""

    stamp: Stamp
    source: int  # the rank that sends it to those without it
    without: tuple[int, ...]

    def tier(self, rank: int) -> Tier:
        """Return the source of a rank's state."""
        return Tier.PEER if rank in self.without else Tier.MEMORY


def cut_short(offers: Sequence[Sequence[Stamp]], began: Sequence[int | None]) -> set[int]:
    """Return the rounds that ended in their first commit: some ranks have made it, others have not.

    None of these rounds' snapshots is complete: the ranks go back to where the round began. A rank that has none of
    them would else be taken for a new one.

    Args:
        offers: The stamps of each rank's complete snapshots, all of this run; by rank.
        began: By rank, the last round that it began with a state that was not in memory; None if there was none.
    """
    rounds = set()
    for stamps, began_in in zip(offers, began, strict=True):
        if began_in is None or any(stamp.round >= began_in for stamp in stamps):
            continue
        # Where a rank has two of them, all have made the first one, and this rank's memory has ended since.
        if all(sum(stamp.round == began_in for stamp in each) < 2 for each in offers):
            rounds.add(began_in)
    return rounds


def choose(offers: Sequence[Sequence[Stamp]], not_from: Collection[int] = ()) -> Choice | None:
    """Return the newest snapshot that is complete; None if no rank has one.

    A snapshot is complete if every rank has it that has any: each of them goes on from its own, to the last random
    number. Ranks without any, which are new, get it from the first rank that has it. If the ranks with snapshots have
    none in common, as after a node came back that had missed a few rounds, the newest one counts.

    Snapshots of the rounds ``not_from`` do not count (:func:`cut_short`).
    """
    offers = [[stamp for stamp in stamps if stamp.round not in not_from] for stamps in offers]
    sets = [set(stamps) for stamps in offers if stamps]
    if not sets:
        return None
    newest = max(set.intersection(*sets) or set.union(*sets))
    having = [rank for rank, stamps in enumerate(offers) if newest in stamps]
    return Choice(newest, having[0], tuple(rank for rank in range(len(offers)) if rank not in having))
