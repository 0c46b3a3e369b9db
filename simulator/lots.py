"""Draws a plan from a seed, for each profile: which job, which faults, how many, how close together.

Most faults come in bursts: what breaks a protocol is the second thing that happens while the first one is being dealt
with. And most jobs are small, since so are the plans that violations shrink to.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from simulator import scripts
from simulator.assumptions import ASSUMPTIONS, numbers
from simulator.plan import LONELY, Fault, Plan

PREPARED = 4.0
"""Seconds after which most jobs have their first round."""


@dataclass(frozen=True)
class Profile:
    """A kind of trouble."""

    weights: Mapping[str, int]
    """How often each kind of fault is drawn, against the others."""
    length: float = 22.0
    """Seconds until everything is made well again."""
    most: int = 7
    """Faults, besides the starts of the agents."""
    hosts: tuple[int, ...] = (2, 2, 3, 3, 3, 4, 5)
    finishing: float = 0.2
    """The share of jobs whose script comes to its end meanwhile."""
    job: Callable[[random.Random], dict[str, Any]] = field(default=lambda _lots: {})
    """What is special about its jobs."""
    script: Callable[[random.Random, Plan], list[Fault]] = field(default=lambda _lots, _plan: [])
    """Faults that all its plans have, besides those that are drawn."""


AGENTS = {"crash": 6, "power": 3, "freeze": 4, "suspend": 3, "leave": 3, "start": 8, "busy": 2, "wall": 1, "fail": 3}
WORKERS = {"fail": 8, "hang": 2, "stuck": 2, "isolate": 2, "ports": 2, "crash": 2, "leave": 1, "start": 3}
NETWORK = {"cut": 8, "slow": 3, "lossy": 5, "fail": 5, "crash": 2, "start": 3, "leave": 1, "freeze": 1}
STORE = {"restart": 6, "read-only": 2, "fail": 4, "crash": 2, "start": 3, "lossy": 2, "leave": 1}
ALL = {
    kind: sum(weights.get(kind, 0) for weights in (AGENTS, WORKERS, NETWORK, STORE))
    for kind in sorted({*AGENTS, *WORKERS, *NETWORK, *STORE})
}


def _reused(lots: random.Random) -> dict[str, Any]:
    return {"uid": lots.random() < 0.5, "min_nodes": 1}


def _embedded(_lots: random.Random) -> dict[str, Any]:
    return {"embedded": True}


def _barren(_lots: random.Random) -> dict[str, Any]:
    return {"work": 10_000.0, "latency": 0.0005, "min_nodes": 2, "max_nodes": 2}


def _flapping(_lots: random.Random) -> dict[str, Any]:
    return {"min_nodes": 1, "max_nodes": 4, "latency": 0.0005}


def _fenced(lots: random.Random) -> dict[str, Any]:
    return {"min_nodes": 1, "max_nodes": lots.choice([1, 1, 2]), "fence_after": 15.0, "peers_notice": False}


def _suspended(_lots: random.Random) -> dict[str, Any]:
    return {"min_nodes": 1, "max_nodes": 1, "fence_after": 15.0, "latency": 0.0005}


def _forgetful(_lots: random.Random) -> dict[str, Any]:
    return {"may_forget": True}


def _graceful(lots: random.Random) -> dict[str, Any]:
    return {
        "pace": lots.choice([0.2, 0.5]),
        "grace": lots.choice([0.0, 8.0, 12.0]),
        "plan_timeout": lots.choice([8.0, 12.0]),
        "last_call": 0.0,
        "min_nodes": lots.choice([1, 1, 1, 2]),
    }


def _resizes(lots: random.Random) -> dict[str, Any]:
    wait, saves, last = lots.choice([(5.0, 0.0, 0), (8.0, 0.0, 0), (1.0, 20.0, 0), (1.0, 25.0, 0), (1.0, 20.0, 2)])
    return {"resize_wait": wait, "saves": saves, "last_save": last, "min_nodes": 1, "work": 10_000.0, "thinking": 0.0}


def _ending(lots: random.Random) -> dict[str, Any]:
    return {"min_nodes": 1, "spread": lots.choice([5.0, 12.0]), "fence_after": 15.0, "work": lots.uniform(3.0, 16.0)}


def _lonely(lots: random.Random) -> dict[str, Any]:
    return {"thinking": 0.0, "max_restarts": lots.choice([0, 1, 3, 3])}


def _causes(lots: random.Random) -> dict[str, Any]:
    return {"peers_tell": True, "peers_notice": True, "max_restarts": lots.choice([0, 0, 1]), "work": 10_000.0}


def _split(lots: random.Random) -> dict[str, Any]:
    return {
        **_fenced(lots),
        "may_forget": True,
        "stale_reads": True,
        "guarded": lots.random() < 0.5,
        "latency": lots.choice([0.0005, 0.002, 0.02]),
    }


def _checks(lots: random.Random) -> dict[str, Any]:
    return {
        "check": lots.choice([1.0, 6.0, 40.0]),
        "sick": lots.choice([0.0, 0.1, 0.3]),
        "exclude_for": lots.choice([5.0, 15.0]),
        "min_nodes": 1,
        "latency": lots.choice([0.0005, 0.002, 0.02]),
    }


def _sizes(lots: random.Random) -> dict[str, Any]:
    return {"limit": lots.choice([640, 660, 700, 800]), "min_nodes": 1, "join_timeout": 20.0}


def _strides(lots: random.Random) -> dict[str, Any]:
    sizes = lots.choice([(2, 4), (1, 3), (2, 4, 6), (1, 2, 4), (3, 5)])
    wait = {"resize_wait": 0.5, "saves": 8.0} if lots.random() < 0.2 else {}
    return {
        "sizes": sizes,
        "min_nodes": sizes[0],
        "max_nodes": sizes[-1],
        "spares": lots.choice([0, 1, 2]),
        "latency": lots.choice([0.0005, 0.002, 0.02]),
        **wait,
    }


def _spares(lots: random.Random) -> dict[str, Any]:
    return {"max_nodes": lots.choice([1, 2, 3]), "min_nodes": 1, "spares": lots.choice([1, 2])}


def _latecomers(lots: random.Random) -> dict[str, Any]:
    work, preload = lots.choice([2.0, 4.0, 8.0, 16.0]), lots.choice([3.0, 8.0, 20.0])
    uid = lots.random() < 0.5
    return {"min_nodes": 1, "work": work, "preload": preload, "uid": uid, "max_restarts": lots.choice([0, 0, 1])}


def _few(lots: random.Random) -> dict[str, Any]:
    return {"enough": False, "join_timeout": lots.choice([10.0, 20.0])}


PROFILES: dict[str, Profile] = {
    "agents": Profile(AGENTS),
    "workers": Profile(WORKERS, finishing=0.5),
    "network": Profile(NETWORK),
    "store": Profile(STORE),
    "everything": Profile(ALL, length=30.0, most=12),
    "ending": Profile({"start": 9, "crash": 3, "freeze": 3, "cut": 2, "leave": 2, "fail": 1}, job=_ending),
    "reused": Profile({"start": 12, "crash": 6, "power": 2, "leave": 3, "fail": 3}, finishing=0.6, job=_reused),
    "embedded": Profile({**AGENTS, "power": 1, "crash": 2, "slow": 2, "cut": 2}, job=_embedded),
    "latecomers": Profile({"start": 18, "fail": 3, "crash": 3, "power": 1, "leave": 2, "cut": 1}, job=_latecomers),
    "few": Profile({"crash": 5, "power": 3, "leave": 4, "start": 1, "fail": 2, "cut": 1}, job=_few),
    "forgetful": Profile(
        {"wipe": 3, "rollback": 4, "masters": 4, "fail": 5, "crash": 3, "start": 3, "cut": 2, "lossy": 1},
        job=_forgetful,
    ),
    "lonely": Profile(
        {"isolate": 8, "sever": 3, "fail": 2, "crash": 1, "start": 2, "cut": 1},
        length=70.0,
        most=3,
        hosts=(2, 3, 3, 4, 4, 5),
        finishing=0.1,
        job=_lonely,
    ),
    "barren": Profile({"ports": 4, "crash": 1, "start": 1}, length=40.0, hosts=(3, 4), job=_barren),
    "flapping": Profile({"crash": 5, "start": 6}, length=45.0, most=16, hosts=(3, 4), job=_flapping),
    "graceful": Profile(
        {"start": 9, "leave": 6, "drain": 4, "crash": 2, "fail": 2, "freeze": 2, "cut": 1, "lossy": 1, "suspend": 1},
        length=50.0,
        job=_graceful,
    ),
    "resizes": Profile(
        {"start": 12, "leave": 3, "crash": 3, "fail": 2, "freeze": 1, "cut": 1, "lossy": 1},
        length=60.0,
        hosts=(2, 3, 3, 4, 5),
        finishing=0.0,
        job=_resizes,
    ),
    "fenced": Profile({"cut": 6, "suspend": 2, "freeze": 3, "start": 2}, length=50.0, most=4, job=_fenced),
    "causes": Profile(
        {"fail": 8, "crash": 1, "start": 2, "slow": 2, "lossy": 1, "cut": 1},
        hosts=(2, 3, 4, 5),
        job=_causes,
    ),
    "sizes": Profile(
        {"start": 8, "crash": 5, "power": 4, "fail": 3, "leave": 3, "drain": 2, "freeze": 1, "isolate": 1},
        length=35.0,
        most=16,
        hosts=(4, 6, 9, 12),
        job=_sizes,
    ),
    "strides": Profile(
        {"start": 9, "crash": 5, "power": 3, "leave": 4, "drain": 2, "fail": 3, "freeze": 1, "cut": 2, "isolate": 1},
        length=40.0,
        most=10,
        hosts=(3, 5, 6, 7),
        finishing=0.1,
        job=_strides,
    ),
    "spares": Profile(
        {"start": 9, "crash": 6, "power": 3, "leave": 2, "freeze": 1, "cut": 1},
        length=40.0,
        most=9,
        hosts=(4, 5),
        finishing=0.0,
        job=_spares,
    ),
    "split": Profile(
        {"split": 8, "refuse": 3, "read-only": 1, "hang-up": 3, "cut": 2, "crash": 1, "freeze": 1, "start": 1},
        length=70.0,
        most=4,
        hosts=(2, 2, 3),
        finishing=0.0,
        job=_split,
    ),
    "fleet": Profile(ALL, length=14.0, most=10, hosts=(8, 10, 12)),
    "leaders": Profile(
        {"start": 2, "wall": 1},
        length=85.0,
        most=2,
        hosts=(4, 4, 5),
        finishing=0.0,
        job=scripts.leaders_job,
        script=scripts.leaders,
    ),
    "questions": Profile(
        {"quiet": 8, "ask": 8, "leader": 4, "crash": 2, "fail": 2, "cut": 2, "freeze": 2, "start": 5, "drain": 1},
        length=45.0,
        most=12,
        hosts=(2, 3, 3, 4),
        finishing=0.1,
        job=scripts.questions_job,
    ),
    "slots": Profile(
        {"start": 8, "cut": 7, "outlive": 5, "freeze": 2, "crash": 2, "power": 1, "fail": 2, "leave": 1},
        length=45.0,
        hosts=(2, 3, 3),
        finishing=0.0,
        job=scripts.slots_job,
    ),
    "vouched": Profile(
        {"start": 4, "wall": 1, "hang-up": 3, "fail": 1},
        length=55.0,
        most=4,
        hosts=(3, 4),
        finishing=0.0,
        job=scripts.vouched_job,
        script=scripts.vouched,
    ),
    **{
        name: Profile(it.weights, it.length, it.most, it.hosts, it.finishing, it.job)
        for name, it in ASSUMPTIONS.items()
    },
    "suspended": Profile({"suspend": 5, "busy": 2, "start": 2}, length=30.0, most=4, hosts=(2,), job=_suspended),
    "departed": Profile(
        {"wall": 2, "start": 1},
        length=45.0,
        most=2,
        hosts=(2,),
        finishing=0.0,
        job=scripts.departed_job,
        script=scripts.departed,
    ),
    "returned": Profile(
        {"wall": 1, "start": 3, "fail": 2, "cut": 1, "crash": 1},
        length=60.0,
        most=3,
        hosts=(2, 3),
        finishing=0.0,
        job=scripts.returned_job,
        script=scripts.returned,
    ),
    "strangers": Profile(
        {"forge-entry": 3, "forge-row": 4, "start": 4, "fail": 2, "crash": 1, "freeze": 1, "cut": 1, "leave": 1},
        length=30.0,
        most=4,
        job=scripts.strangers_job,
    ),
    "programs": Profile(
        {"start": 18, "fail": 2, "crash": 2, "cut": 1, "leave": 1},
        length=45.0,
        hosts=(2, 2, 3),
        finishing=0.4,
        job=scripts.programs_job,
    ),
    "checks": Profile(
        {"fail": 14, "drain": 5, "notice": 2, "leave": 2, "start": 6, "crash": 1, "cut": 1, "lossy": 1, "freeze": 1},
        length=45.0,
        most=9,
        hosts=(2, 3, 3, 4),
        finishing=0.1,
        job=_checks,
    ),
    "crowd": Profile(
        {"wall": 1, "start": 2},
        length=42.0,
        most=3,
        hosts=(2, 3),
        finishing=0.0,
        job=scripts.crowd_job,
        script=scripts.crowd,
    ),
}
"""All of them; those that break an assumption are no part of a campaign."""
ORDER = (
    "everything",
    "network",
    "agents",
    "everything",
    "store",
    "workers",
    "reused",
    "everything",
    "embedded",
    "few",
    "network",
    "forgetful",
    "fleet",
    "fenced",
    "lonely",
    "forgetful",
    "ending",
    "barren",
    "flapping",
    "graceful",
    "sizes",
    "latecomers",
    "causes",
    "split",
    "leaders",
    "slots",
    "vouched",
    "departed",
    "returned",
    "strangers",
    "programs",
    "crowd",
    "suspended",
    "graceful",
    "questions",
    "resizes",
    "strides",
    "spares",
    "checks",
)
"""In which order a campaign takes them, again and again."""


def draw(seed: int, profile: str, liveness: bool = True) -> Plan:
    """Draw the plan of a seed; it is the same on every machine and Python.

    Without ``liveness`` it ends with its faults, and has more of them: all that must hold then is what must always.
    """
    kind = PROFILES[profile]
    lots = random.Random(f"{profile} {seed}")
    hosts = lots.choice(kind.hosts)
    most = lots.choice([hosts, hosts, max(1, hosts - 1)])
    plan = Plan(
        profile=profile,
        noise=seed,
        hosts=hosts,
        min_nodes=lots.choice([1, 1, max(1, most // 2), max(1, most - 1), most]),
        max_nodes=most,
        max_restarts=lots.choice([0, 1, 3, 3]),
        replace_lost=lots.random() < 0.85,
        join_timeout=lots.choice([20.0, 40.0]),
        fence_after=lots.choice([15.0, 30.0]),
        last_call=lots.choice([0.0, 1.0, 1.0]),
        rates=tuple(round(lots.uniform(0.97, 1.03), 4) for _ in range(hosts)),
        latency=lots.choice([0.0005, 0.002, 0.02, 0.1]),
        timeout=lots.choice([2.0, 4.0]),
        peers_notice=lots.random() < 0.6,
        work=round(lots.uniform(3, kind.length), 1) if lots.random() < kind.finishing else 10_000.0,
        spread=lots.choice([0.0, 0.5, 5.0]),
        thinking=lots.choice([0.0, 0.0, 0.0, 0.2, 2.0]),
        uid=lots.random() < 0.8,
        quiet_at=kind.length,
        liveness=liveness,
        enough=True,
        faults=(),
    )
    plan = replace(plan, **kind.job(lots))
    if plan.liveness and plan.hosts > max(2, plan.min_nodes) and not plan.embedded and lots.random() < 0.25:
        plan = replace(plan, broken=lots.randint(1, 3) if profile != "lonely" else LONELY)
    plan = replace(plan, whole=random.Random(f"whole {profile} {seed}").choice([4, 8, 64]))
    if profile == "workers":
        policies = random.Random(f"policies {profile} {seed}")  # not of `lots`, of which other draws depend
        plan = replace(plan, delay=policies.choice([0.0, 0.0, 2.0, 7.0]), exclude_for=policies.choice([0.0, 0.0, 9.0]))
    drawn = [*_starts(lots, plan), *_trouble(lots, plan, kind)]
    return replace(plan, faults=tuple(sorted([*drawn, *kind.script(lots, plan)])))


def _starts(lots: random.Random, plan: Plan) -> list[Fault]:
    together = lots.choice([0.1, 1.0, 3.0])
    first = 1 if plan.embedded else 0  # where the store lives, the first agent is
    return [
        Fault(round(lots.uniform(0.05, together) if host >= first else 0.0, 3), "start", host)
        for host in range(plan.hosts)
    ]


def _trouble(lots: random.Random, plan: Plan, kind: Profile) -> list[Fault]:
    kinds, weights = list(kind.weights), list(kind.weights.values())
    count = lots.randint(1, kind.most if plan.liveness else 2 * kind.most)
    bursts = [lots.uniform(0.2 if lots.random() < 0.2 else PREPARED, kind.length - 3.0) for _ in range(1 + count // 3)]
    found = []
    for _ in range(count):
        at = lots.choice(bursts) + lots.choice([0.0, lots.uniform(0, 0.1), lots.uniform(0, 2), lots.uniform(0, 7)])
        name = lots.choices(kinds, weights)[0]
        span, value = _numbers(lots, name, plan)
        at = min(at, kind.length - 0.5)
        first = 1 if plan.embedded and name in ("cut", "slow", "lossy") else 0  # nothing is between it and its store
        found.append(Fault(round(at, 3), name, lots.randrange(first, plan.hosts), round(span, 3), round(value, 3)))
    return found


def _numbers(lots: random.Random, kind: str, plan: Plan) -> tuple[float, float]:
    """Draw a span and a value that are worth trying."""
    if plan.profile in ASSUMPTIONS and (found := numbers(lots, kind, plan)) is not None:
        return found
    short, long = lots.uniform(0.05, 1.5), lots.uniform(2.0, 14.0)
    span = lots.choice([short, long])
    match kind:
        case "crash":
            return lots.choice([0.01, 0.3, 3.0]), 0.0
        case "power" | "leave" | "fail" | "wall":
            return 0.0, lots.uniform(-4000, 4000) if kind == "wall" else 0.0
        case "start":
            lot = lots.random()
            if plan.profile == "programs":
                return 0.0, 3.0 if lot < 0.35 else 4.0 if lot < 0.6 else 1.0
            if plan.profile == "slots":
                return 0.0, float(lot < 0.6)
            return 0.0, 2.0 if plan.profile in ("reused", "latecomers") and lot < 0.3 else 1.0 if lot < 0.2 else 0.0
        case "suspend":
            return span, float(lots.randrange(2))
        case "freeze" if plan.profile == "ending":
            return lots.choice([short, plan.fence_after]), 0.0
        case "cut" if plan.profile == "slots":
            return lots.choice([short, lots.uniform(3.0, 5.5), plan.fence_after]), float(lots.randrange(3))
        case "cut":
            return lots.choice([short, long, plan.fence_after]), float(lots.randrange(3))
        case "quiet" | "ask":
            return lots.choice([2.0, 12.0, 30.0]), float(lots.random() < 0.3) if kind == "ask" else 0.0
        case "leader":
            return lots.choice([0.01, 0.3]), lots.choice([0.5, 2.0])
        case "outlive":
            return lots.choice([2.0, 6.0, 0.8 * plan.fence_after]), 0.0
        case "forge-entry":
            return 0.0, float(lots.randrange(6))
        case "forge-row":
            return 0.0, float(lots.randrange(2))
        case "masters":
            return long, float(lots.randrange(1 << plan.hosts))
        case "split":
            return lots.choice([2.0, 3.0]) * plan.fence_after, float(lots.randrange(1 << plan.hosts))
        case "hang-up":
            return lots.choice([short, long, plan.fence_after]), float(lots.randrange(4))
        case "refuse" | "read-only" if plan.profile == "split":
            return lots.choice([short, long, 2 * plan.fence_after]), 0.0
        case "ports":
            return lots.choice([short, 30.0]), 0.0
        case "slow":
            return long, lots.choice([0.3, 1.0, 3.0])
        case "busy":
            return long, lots.choice([0.1, 0.5, 2.0])
        case "lossy":
            return span, lots.choice([0.1, 0.3, 0.7])
        case "isolate" | "sever" if plan.profile == "lonely":
            return lots.choice([short, long, 60.0]), float(lots.randrange(1, 3)) if kind == "sever" else 0.0
        case "notice":
            return lots.choice([2.0, 30.0, 120.0]), 0.0
        case "stuck":
            return lots.choice([short, 25.0]), 0.0
    return span, 0.0
