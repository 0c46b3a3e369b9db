"""The time for which rounds train at once, where an assumption that forbids it is broken."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from simulator.assumptions import ASSUMPTIONS

if TYPE_CHECKING:
    from simulator.workers import Training
    from simulator.world import World

APART = 0.1
"""Seconds between two samples."""
ROUNDS, RUNS = "rounds of one run train at once", "two runs train at once"


class Overlaps:
    """A sampler that adds up the overlap of each pair of trainings; a suspended machine does not train."""

    def __init__(self, world: World) -> None:
        self.world, self.assumption = world, ASSUMPTIONS[world.plan.profile]
        self.most: dict[str, float] = {}
        """The longest overlap of each kind, in seconds."""
        self._seconds: dict[tuple[int, int], float] = {}
        world.hub.at(APART, self._look)

    def _look(self) -> None:
        world = self.world
        moving = [each for each in world.checker.active_trainings.values() if not _is_suspended(each)]
        for one, other in combinations(moving, 2):
            pair = id(one), id(other)
            seconds = self._seconds[pair] = self._seconds.get(pair, 0.0) + APART
            kind = ROUNDS if one.run == other.run else RUNS
            self.most[kind] = max(seconds, self.most.get(kind, 0.0))
            bound = (self.assumption.overlap if kind == ROUNDS else self.assumption.runs)(world.plan)
            if seconds > bound + APART:
                both = f"round {one.round.number} of {one.run} and round {other.round.number} of {other.run}"
                world.checker.fail("overlap", f"{both} train at once for {seconds:.1f} s, of {bound:.1f} s at most")
        world.hub.at(world.hub.now + APART, self._look)


def _is_suspended(training: Training) -> bool:
    return any(worker.host.suspended for worker in training.workers.values())
