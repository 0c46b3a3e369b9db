"""Fixtures of the simulator's tests: the processes that play, and the results that exist already."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from simulator import campaign
from simulator.campaign import Result

Played = Callable[[int, int], Result]


@pytest.fixture(scope="session")
def played() -> Iterator[Played]:
    """Plays so many plans from a number on; the same ones only once."""
    known: dict[tuple[int, int], Result] = {}
    with campaign.pool() as processes:

        def play(first: int, count: int) -> Result:
            if (first, count) not in known:
                known[first, count] = campaign.run(first, count, processes)
            return known[first, count]

        yield play
