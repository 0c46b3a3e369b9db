"""Draws a plan from a seed, for each profile: which faults, how many, how close together."""

from __future__ import annotations

import random

from simulation.plan import Fault, Plan


def draw(seed: int, profile: str = "crashes") -> Plan:
    """The plan of a seed; the same on every machine and Python."""
    return PROFILES[profile](random.Random(f"{profile}-{seed}"), seed)


def _crashes(lots: random.Random, seed: int) -> Plan:
    """Three nodes, a perfect store, agents that crash."""
    starts = [Fault(round(lots.uniform(0, 2), 3), "start", host) for host in range(3)]
    hurt = [
        Fault(round(lots.uniform(3, 30), 3), lots.choice(["crash", "start", "fail"]), lots.randrange(3), 0.1)
        for _ in range(lots.randint(0, 5))
    ]
    return Plan(profile="crashes", noise=seed, faults=tuple(sorted([*starts, *hurt])), quiet_at=35.0)


PROFILES = {"crashes": _crashes}
