"""Which state all ranks go on from: one pure function of what each of them has."""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from elastic_torch.version import Stamp


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
