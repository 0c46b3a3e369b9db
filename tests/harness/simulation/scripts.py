"""The jobs of profiles that test one rule each, and the faults that all their plans have."""

from __future__ import annotations

import random
from typing import Any

from simulation.plan import Fault, Plan


def leaders_job(lots: random.Random) -> dict[str, Any]:
    """A job whose only members lose sight of the store, and spares that decide one after another."""
    return {
        "min_nodes": 1,
        "max_nodes": lots.choice([1, 1, 2]),
        "fence_after": lots.choice([20.0, 30.0]),
        "reign": lots.choice([12.0, 14.0, 18.0]),
        "latency": lots.choice([0.0005, 0.002, 0.02]),
        "peers_notice": False,
        "replace_lost": True,
        "thinking": 0.0,
    }


def leaders(lots: random.Random, plan: Plan) -> list[Fault]:
    """All members are cut off once there is a round; soon after it was halted, the first leader is killed."""
    cut_at, at = round(lots.uniform(5.0, 7.0), 3), lots.uniform(19.0, 26.0)
    found = [Fault(cut_at, "members", 0, plan.quiet_at)]
    while at < plan.quiet_at:
        found.append(Fault(round(at, 3), "leader", 0, lots.choice([0.01, 0.3]), lots.choice([0.5, 2.0])))
        at += plan.reign
    return found


def seats_job(lots: random.Random) -> dict[str, Any]:
    """A job on hosts of which two may have one host id."""
    return {
        "min_nodes": 1,
        "max_nodes": lots.choice([1, 1, 2, 3]),
        "twins": lots.choice([None, 0.5, -300.0, 300.0]),
        "latency": lots.choice([0.0005, 0.002, 0.02]),
        "peers_notice": lots.random() < 0.3,
        "replace_lost": True,
    }
