"""Which state all ranks go on from: one pure function of what each of them has."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from elastic_torch.stamp import Stamp


class Tier(enum.Enum):
    """Where a rank takes its state from."""

    MEMORY = "memory"
    """A snapshot of its own that the agent has kept."""
    PEER = "peer"
    """Another rank's snapshot."""
    DISK = "disk"
    """A checkpoint."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest checkpoint that a rank can read.

    Attributes:
        run: ``stamp.digest`` of the run that wrote it.
        stamp: When.
    """

    run: int
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Offer:
    """What one rank has: its complete snapshots, all of this run, and its newest checkpoint."""

    snapshots: tuple[Stamp, ...] = ()
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """What all go on from.

    Attributes:
        stamp: Of the state.
        checkpoint: It, where it is one; else it is a snapshot.
        source: The rank that gives it to those who have it not.
        without: Those, in order.
    """

    stamp: Stamp
    checkpoint: Checkpoint | None
    source: int
    without: tuple[int, ...]

    def tier(self, rank: int) -> Tier:
        """Where a rank takes its state from."""
        if rank in self.without:
            return Tier.PEER
        return Tier.MEMORY if self.checkpoint is None else Tier.DISK


def choose(offers: Sequence[Offer], run: int) -> Choice | None:
    """The newest state that is complete; None if nobody has any.

    Complete is a snapshot that every rank has which has any: then each of them goes on from its own, to the last
    random number. Ranks without any, newcomers, get it from the first that has it. Where those who have some have none
    in common, as after somebody came back who had missed a few rounds, the newest one counts. A checkpoint goes before
    a snapshot where it is of this run and newer; those of other runs are older than any snapshot.

    Args:
        offers: Of each rank, in order.
        run: ``stamp.digest`` of this run.
    """
    snapshot, checkpoint = _snapshot(offers), _checkpoint(offers, run)
    if checkpoint is not None and (snapshot is None or (checkpoint.run == run and checkpoint.stamp > snapshot)):
        having = [rank for rank, offer in enumerate(offers) if offer.checkpoint == checkpoint]
        return _choice(checkpoint.stamp, checkpoint, having, len(offers))
    if snapshot is not None:
        having = [rank for rank, offer in enumerate(offers) if snapshot in offer.snapshots]
        return _choice(snapshot, None, having, len(offers))
    return None


def _snapshot(offers: Sequence[Offer]) -> Stamp | None:
    sets = [set(offer.snapshots) for offer in offers if offer.snapshots]
    if not sets:
        return None
    return max(set.intersection(*sets) or set.union(*sets))


def _checkpoint(offers: Sequence[Offer], run: int) -> Checkpoint | None:
    """The newest; of runs that are over, the one that came furthest."""
    found = [offer.checkpoint for offer in offers if offer.checkpoint is not None]
    of_this_run = [checkpoint for checkpoint in found if checkpoint.run == run]
    if of_this_run:
        return max(of_this_run, key=lambda checkpoint: checkpoint.stamp)
    return max(found, key=lambda c: (c.stamp.step, c.stamp.round, c.run), default=None)


def _choice(stamp: Stamp, checkpoint: Checkpoint | None, having: list[int], ranks: int) -> Choice:
    without = tuple(rank for rank in range(ranks) if rank not in having)
    return Choice(stamp, checkpoint, having[0], without)
