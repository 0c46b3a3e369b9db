"""The guarantees that remain, and no more, where an assumption of the rules S1 to S8 does not hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from simulator import measure
from simulator.assumption_faults import KINDS
from simulator.assumptions import ASSUMPTIONS
from simulator.measure import Consequence

PLANS = 15
"""StopPlans of a profile for each seed."""


@pytest.fixture(scope="module")
def total() -> Iterator[Consequence]:
    """Yield the consequences of all plays; every fault that breaks an assumption must have been in some of them."""
    found = Consequence()
    yield found
    if set(ASSUMPTIONS) <= set(found.coverage):
        assert [kind for kind in KINDS if not found.coverage[f"fault {kind}"]] == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("profile", ASSUMPTIONS)
def test_other_invariants_hold_under_a_broken_assumption(profile: str, seed: int, total: Consequence) -> None:
    found = measure.measure(profile, range(seed * PLANS, (seed + 1) * PLANS))
    assert not found.violations, "\n".join(
        f"{violation}\n  look at it: python -m simulator --shrink --profile {violation}"
        for violation in found.violations
    )
    total.add(found)
    total.coverage[profile] += 1
