"""The assumptions of the rules S1 to S8: a profile that breaks each, and the invariants that hold all the same.

A profile names the invariants that do not hold without its assumption; they are measured. Any other violation counts as
usual, and so do two rounds of one run that train at once for longer than stated here. ``docs/internals/protocol.md``
has the consequences as a table; ``python -m simulator.measure`` measures them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.plan import Plan

KILL_SECONDS = 2.5
"""The most seconds from the instant that a fence is due, or a stop is requested, to the end of the last worker."""
CONTACT_SECONDS = 9.0
"""Seconds within which a node with contact to the right server knows its state, and has stopped its workers."""


FENCED = ("drift", "clocks", "stalls", "copies")
"""Profiles whose plans must reach the fence."""
SAFETY = frozenset({"S4", "I6"})
"""The invariants that forbid two rounds of one run at once, and an earlier one after a later one."""


@dataclass(frozen=True)
class Assumption:
    """A broken assumption: its faults, and the invariants that do not hold."""

    says: str
    """The assumption, as a sentence."""
    weights: Mapping[str, int]
    """Weights of the kinds of faults."""
    suspends: frozenset[str] = frozenset()
    """Invariants that do not hold, by name; after a colon, a part of the violation's text that must be present."""
    overlap: Callable[[Plan], float] = field(default=lambda _plan: 0.0)
    """The most seconds for which two rounds of one run train at once."""
    runs: Callable[[Plan], float] = field(default=lambda _plan: math.inf)
    """The most seconds for which two runs train at once."""
    job: Callable[[random.Random], dict[str, Any]] = field(default=lambda _rng: {})
    length: float = 60.0
    most: int = 4
    hosts: tuple[int, ...] = (2, 2, 3)
    finishing: float = 0.0

    def suspended(self, name: str, what: str) -> str:
        """Return the suspended invariant that a violation is of; '' for none."""
        for item in self.suspends:
            wanted, _, words = item.partition(": ")
            if wanted == name and words in what:
                return item
        return ""


def _fenced(rng: random.Random) -> dict[str, Any]:
    """Draw a job in which only the fence shows that a round is over."""
    return {
        "min_nodes": 1,
        "max_nodes": rng.choice([1, 1, 2]),
        "fence_after": 15.0,
        "peer_loss_noticed": False,
        "finish_spread": 0.0,
    }


def _clocks(rng: random.Random) -> dict[str, Any]:
    """Draw clocks of which some run two or four times as fast as others."""
    return {
        **_fenced(rng),
        "fence_after": 40.0,
        "clock_rates": _rates(rng, [(0.7, 1.0), (0.5, 1.0), (1.0, 2.0), (0.5, 2.0)]),
    }


def _drift(rng: random.Random) -> dict[str, Any]:
    """Draw clocks that differ by a fifth at most."""
    return {**_fenced(rng), "fence_after": 40.0, "clock_rates": _rates(rng, [(0.85, 1.0), (0.9, 1.1), (1.0, 1.15)])}


def _rates(rng: random.Random, pairs: list[tuple[float, float]]) -> tuple[float, ...]:
    pair = rng.choice(pairs)
    return tuple(rng.choice(pair) for _ in range(3))


def _while_faults_last(*kinds: str) -> Callable[[Plan], float]:
    """Return a bound: the length of these faults, and the time until the nodes have contact."""
    return lambda plan: sum(fault.span for fault in plan.faults if fault.kind in kinds) + CONTACT_SECONDS


def _fences(plan: Plan) -> float:
    """Return a bound: the time until hosts that lost time are fenced."""
    return 0.8 * plan.fence_after / min(plan.clock_rates) + KILL_SECONDS


def _clock_difference(plan: Plan) -> float:
    """Return the time from the end of the fastest clock's wait to the slowest clock's fence."""
    return plan.fence_after * max(0.0, 0.8 / min(plan.clock_rates) - 1 / max(plan.clock_rates)) + KILL_SECONDS


def _copies(rng: random.Random) -> dict[str, Any]:
    return {**_fenced(rng), "may_forget": True}


def _moved(rng: random.Random) -> dict[str, Any]:
    misled = rng.random() < 0.5
    return {**_fenced(rng), "may_forget": True, "stale_reads": misled, "stale_sentinels": misled}


def _many(rng: random.Random) -> dict[str, Any]:
    return {"min_nodes": 1, "fence_after": 15.0}


def _marooned(rng: random.Random) -> dict[str, Any]:
    return {
        "min_nodes": 1,
        "max_nodes": rng.choice([1, 2]),
        "fence_after": rng.choice([30.0, 60.0]),
        "join_timeout": 60.0,
    }


def _again(rng: random.Random) -> dict[str, Any]:
    return {"min_nodes": 1, "has_uid": rng.random() < 0.5, "work_seconds": rng.uniform(3.0, 16.0)}


ASSUMPTIONS: dict[str, Assumption] = {
    "ghosts": Assumption(
        "S2: what a client has given up is carried out soon, or never",
        {"ghosts": 8, "crash": 3, "start": 5, "fail": 3, "leave": 1},
        job=_many,
        hosts=(2, 3, 4),
        most=8,
    ),
    "appends": Assumption(
        "S2: of two entries at one index the store takes one, and keeps it",
        {"loose": 8, "crash": 3, "start": 4, "fail": 5, "freeze": 3, "lossy": 1},
        job=_many,
        hosts=(2, 3, 4),
        most=8,
    ),
    "ids": Assumption(
        "S2: no two entries have one id",
        {"same-ids": 6, "crash": 3, "start": 4, "fail": 5, "freeze": 4},
        frozenset({"S7"}),
        job=_many,
        hosts=(2, 3, 4),
        most=8,
    ),
    "copies": Assumption(
        "S3, S4: a store does not forget a HALT that has stood for long",
        {"copy": 6, "cut": 5, "freeze": 1, "start": 3, "crash": 2},
        SAFETY,
        _fences,
        job=_copies,
    ),
    "unsaid": Assumption(
        "S3: a store that may forget says so",
        {"wipe": 3, "rollback": 3, "copy": 3, "start": 4, "crash": 3, "cut": 3, "fail": 2},
        job=_many,
    ),
    "holes": Assumption(
        "S3: a store loses its newest entries, not those in between",
        {"hole": 8, "start": 5, "crash": 4, "cut": 3, "fail": 4},
        frozenset({"S3: gives up a store"}),
        job=_many,
        hosts=(2, 3, 4),
        most=8,
    ),
    "rot": Assumption(
        "S3: an entry can be read as it was written",
        {"rot": 8, "start": 5, "crash": 4, "cut": 3, "fail": 4},
        frozenset({"S3: gives up a store"}),
        job=_many,
        hosts=(2, 3, 4),
        most=8,
    ),
    "stale": Assumption(
        "S3, S4, S6, S7: a store answers no read with an older state, unless it says that it may",
        {"stale": 6, "older": 4, "crash": 3, "start": 4, "fail": 2, "cut": 2, "hang-up": 2},
        SAFETY | {"L1"},
        _while_faults_last("stale", "older"),
        job=_fenced,
        hosts=(2, 3, 3, 4),
    ),
    "moved": Assumption(
        "S4: a server that was replaced refuses writes, or sentinels say so",
        {"split": 8, "crash": 1, "start": 1},
        SAFETY,
        _while_faults_last("split"),
        job=_moved,
        length=70.0,
    ),
    "drift": Assumption(
        "S4: clocks run alike",
        {"cut": 6, "freeze": 2, "start": 2},
        job=_drift,
        length=120.0,
    ),
    "clocks": Assumption(
        "S4: clocks run alike, but for a fifth",
        {"cut": 6, "freeze": 2, "start": 2},
        SAFETY | {"L1"},
        _clock_difference,
        job=_clocks,
        length=120.0,
    ),
    "stalls": Assumption(
        "S4: the warden runs whenever its workers do, and SIGKILL ends them",
        {"stall": 6, "stuck": 2, "cut": 6, "freeze": 2, "crash": 2, "start": 2},
        SAFETY,
        _while_faults_last("stall", "stuck"),
        job=_fenced,
        most=6,
    ),
    "pauses": Assumption(
        "S4: the clock of a machine goes on while the machine stands still",
        {"pause": 8, "start": 2, "crash": 1},
        SAFETY,
        _fences,
        job=_fenced,
    ),
    "runs": Assumption(
        "S5, S6: a run whose nodes are all silent is over",
        {"maroon": 8},
        runs=_fences,
        job=_marooned,
        hosts=(3,),
        length=100.0,
        most=1,
    ),
    "uids": Assumption(
        "S6: every run has a uid of its own",
        {"start": 12, "crash": 3, "fail": 2},
        job=_again,
        length=40.0,
        most=10,
    ),
    "rows": Assumption(
        "S7: only its node writes a row",
        {"replay": 8, "erase": 5, "crash": 3, "start": 4, "fail": 4, "leave": 1},
        frozenset({"S3: gives up a store", "P1", "I2: a store that served before"}),
        job=_many,
        hosts=(2, 3, 4),
        most=8,
    ),
    "rewinds": Assumption(
        "S8: a machine that is booted again has another host id, or a clock that goes on",
        {"rewind": 8, "crash": 4, "start": 6, "fail": 2, "cut": 2},
        SAFETY | {"S8: is gone from its slot", "S8: is taken for gone, and lives"},
        _fences,
        job=_many,
        hosts=(2, 3, 3),
        most=7,
    ),
}
"""All assumptions, by the names of their profiles."""


def draw_numbers(rng: random.Random, kind: str, plan: Plan) -> tuple[float, float] | None:
    """Draw a span and a value; None for a fault that is drawn as in other profiles."""
    fence = plan.fence_after
    short, long = rng.uniform(0.05, 1.5), rng.uniform(2.0, 14.0)
    match kind:
        case "ghosts":
            return long, rng.choice([0.1, 0.3, 0.7])
        case "hang-up" if plan.profile == "stale":
            return rng.choice([long, fence, 2 * fence]), float(rng.randrange(4))
        case "loose":
            return rng.choice([long, fence]), float(rng.randrange(2))
        case "same-ids":
            return rng.choice([long, 2 * fence]), 0.0
        case "stuck" if plan.profile == "stalls":
            return rng.choice([long, fence, 2 * fence]), 0.0
        case "older":
            return rng.choice([short, long, fence]), rng.choice([1.0, 5.0, fence])
        case "copy":
            return short, rng.choice([1.0, 5.0, fence / 2, fence, 2 * fence])
        case "hole" | "rot":
            return 0.0, float(rng.randrange(64))
        case "stale" | "stall":
            return rng.choice([short, long, fence, 2 * fence]), float(rng.randrange(2))
        case "pause":
            return rng.choice([long, fence, 2 * fence]), 0.0
        case "maroon":
            return fence, 0.0
        case "replay":
            return 0.0, float(rng.choice([0, 1, 1, 5]))
        case "cut" if plan.profile in FENCED:
            return rng.choice([long, fence, 2 * fence, 3 * fence]), float(rng.randrange(3))
        case "freeze" if plan.profile in FENCED:
            return rng.choice([short, long, 2 * fence]), 0.0
    return None
