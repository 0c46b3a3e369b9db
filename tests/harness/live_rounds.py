"""The rounds that were alive at each time, by the signs of life that workers wrote: never two at once (rule S4).

A round is alive while all its ranks are: training is synchronous, so without one of them it cannot take a step. What
the ranks are busy with does not count: a step that is not over yet may still be.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Life:
    """One rank's process: its first and its last sign of life, by the machine's monotonic clock."""

    round: int
    rank: int
    world_size: int
    began: float
    ended: float


def lives(folder: Path) -> list[Life]:
    """Read what all workers with ``--lives`` wrote there (``tests/workers/barrier.py``)."""
    found = []
    for path in folder.iterdir():
        signs = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if signs:
            first, last = signs[0], signs[-1]
            found.append(Life(first["round"], first["rank"], first["world_size"], first["at"], last["at"]))
    return found


def live_spans(found: Iterable[Life]) -> dict[int, tuple[float, float]]:
    """From when until when all ranks of a round were alive, for each round that had such a time, in their order."""
    rounds: dict[int, dict[int, Life]] = {}
    for life in found:
        ranks = rounds.setdefault(life.round, {})
        assert life.rank not in ranks, f"rank {life.rank} of round {life.round} was started twice"
        ranks[life.rank] = life
    spans = {}
    for number, ranks in sorted(rounds.items()):
        began, ended = max(life.began for life in ranks.values()), min(life.ended for life in ranks.values())
        if len(ranks) == next(iter(ranks.values())).world_size and began <= ended:
            spans[number] = began, ended
    return spans


def two_alive(found: Iterable[Life]) -> list[tuple[int, int]]:
    """Return the pairs of rounds, the earlier first, of which the earlier still lived when the later one began."""
    spans = live_spans(found)
    return [(old, new) for old, new in combinations(spans, 2) if spans[old][1] >= spans[new][0]]
