"""Profiles, and the plans drawn from them: the job, the faults, their number and their spacing.

Most faults come in bursts: a protocol breaks at the second fault, which comes while it handles the first one. Most jobs
are small, since shrunken plans are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from simulator import scripted_profiles
from simulator.assumptions import ASSUMPTIONS, draw_numbers
from simulator.plan import ISOLATED, Fault, Plan

FIRST_ROUND_AT = 4.0
"""Seconds after which most jobs have their first round."""


@dataclass(frozen=True)
class Profile:
    """A mix of faults and a kind of job."""

    weights: Mapping[str, int]
    """Weights of the kinds of faults."""
    length: float = 22.0
    """Seconds until all faults end."""
    most: int = 7
    """Faults, besides the starts of the agents."""
    hosts: tuple[int, ...] = (2, 2, 3, 3, 3, 4, 5)
    finishing: float = 0.2
    """The share of jobs whose script finishes before that."""
    job: Callable[[random.Random], dict[str, Any]] = field(default=lambda _rng: {})
    """Draws the fields in which its jobs differ from the default."""
    script: Callable[[random.Random, Plan], list[Fault]] = field(default=lambda _rng, _plan: [])
    """Draws the faults that all its plans have, besides random ones."""
    first_name: str = ""
    """The profile's name before a rename; it is part of the seed of random numbers, so plans stay as they were."""


AGENTS = {"crash": 6, "power": 3, "freeze": 4, "suspend": 3, "leave": 3, "start": 8, "busy": 2, "wall": 1, "fail": 3}
WORKERS = {"fail": 8, "hang": 2, "stuck": 2, "isolate": 2, "ports": 2, "crash": 2, "leave": 1, "start": 3}
NETWORK = {"cut": 8, "slow": 3, "lossy": 5, "fail": 5, "crash": 2, "start": 3, "leave": 1, "freeze": 1}
STORE = {"restart": 6, "read-only": 2, "fail": 4, "crash": 2, "start": 3, "lossy": 2, "leave": 1}
ALL = {
    kind: sum(weights.get(kind, 0) for weights in (AGENTS, WORKERS, NETWORK, STORE))
    for kind in sorted({*AGENTS, *WORKERS, *NETWORK, *STORE})
}


def _reused(rng: random.Random) -> dict[str, Any]:
    return {"has_uid": rng.random() < 0.5, "min_nodes": 1}


def _embedded(_rng: random.Random) -> dict[str, Any]:
    return {"embedded": True}


def _no_progress(_rng: random.Random) -> dict[str, Any]:
    return {"work_seconds": 10_000.0, "latency": 0.0005, "min_nodes": 2, "max_nodes": 2}


def _flapping(_rng: random.Random) -> dict[str, Any]:
    return {"min_nodes": 1, "max_nodes": 4, "latency": 0.0005}


def _fenced(rng: random.Random) -> dict[str, Any]:
    return {"min_nodes": 1, "max_nodes": rng.choice([1, 1, 2]), "fence_after": 15.0, "peer_loss_noticed": False}


def _suspended(_rng: random.Random) -> dict[str, Any]:
    return {"min_nodes": 1, "max_nodes": 1, "fence_after": 15.0, "latency": 0.0005}


def _data_loss(_rng: random.Random) -> dict[str, Any]:
    return {"may_forget": True}


def _graceful(rng: random.Random) -> dict[str, Any]:
    return {
        "step_seconds": rng.choice([0.2, 0.5]),
        "grace": rng.choice([0.0, 8.0, 12.0]),
        "plan_timeout": rng.choice([8.0, 12.0]),
        "last_call_timeout": 0.0,
        "min_nodes": rng.choice([1, 1, 1, 2]),
    }


def _resizes(rng: random.Random) -> dict[str, Any]:
    wait, saves, last = rng.choice([(5.0, 0.0, 0), (8.0, 0.0, 0), (1.0, 20.0, 0), (1.0, 25.0, 0), (1.0, 20.0, 2)])
    return {
        "resize_wait": wait,
        "checkpoint_interval": saves,
        "last_checkpoint": last,
        "min_nodes": 1,
        "work_seconds": 10_000.0,
        "policy_seconds": 0.0,
    }


def _ending(rng: random.Random) -> dict[str, Any]:
    return {
        "min_nodes": 1,
        "finish_spread": rng.choice([5.0, 12.0]),
        "fence_after": 15.0,
        "work_seconds": rng.uniform(3.0, 16.0),
    }


def _isolated(rng: random.Random) -> dict[str, Any]:
    return {"policy_seconds": 0.0, "max_restarts": rng.choice([0, 1, 3, 3])}


def _causes(rng: random.Random) -> dict[str, Any]:
    return {
        "peer_loss_reported": True,
        "peer_loss_noticed": True,
        "max_restarts": rng.choice([0, 0, 1]),
        "work_seconds": 10_000.0,
    }


def _split(rng: random.Random) -> dict[str, Any]:
    return {
        **_fenced(rng),
        "may_forget": True,
        "stale_reads": True,
        "guarded": rng.random() < 0.5,
        "latency": rng.choice([0.0005, 0.002, 0.02]),
    }


def _checks(rng: random.Random) -> dict[str, Any]:
    return {
        "check_seconds": rng.choice([1.0, 6.0, 40.0]),
        "check_failure_rate": rng.choice([0.0, 0.1, 0.3]),
        "exclude_for": rng.choice([5.0, 15.0]),
        "min_nodes": 1,
        "latency": rng.choice([0.0005, 0.002, 0.02]),
    }


def _sizes(rng: random.Random) -> dict[str, Any]:
    return {"value_limit": rng.choice([640, 660, 700, 800]), "min_nodes": 1, "join_timeout": 20.0}


def _node_counts(rng: random.Random) -> dict[str, Any]:
    sizes = rng.choice([(2, 4), (1, 3), (2, 4, 6), (1, 2, 4), (3, 5)])
    wait = {"resize_wait": 0.5, "checkpoint_interval": 8.0} if rng.random() < 0.2 else {}
    return {
        "sizes": sizes,
        "min_nodes": sizes[0],
        "max_nodes": sizes[-1],
        "spares": rng.choice([0, 1, 2]),
        "latency": rng.choice([0.0005, 0.002, 0.02]),
        **wait,
    }


def _spares(rng: random.Random) -> dict[str, Any]:
    return {"max_nodes": rng.choice([1, 2, 3]), "min_nodes": 1, "spares": rng.choice([1, 2])}


def _latecomers(rng: random.Random) -> dict[str, Any]:
    work, preload = rng.choice([2.0, 4.0, 8.0, 16.0]), rng.choice([3.0, 8.0, 20.0])
    uid = rng.random() < 0.5
    return {
        "min_nodes": 1,
        "work_seconds": work,
        "import_seconds": preload,
        "has_uid": uid,
        "max_restarts": rng.choice([0, 0, 1]),
    }


def _few(rng: random.Random) -> dict[str, Any]:
    return {"replace_agents": False, "join_timeout": rng.choice([10.0, 20.0])}


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
    "data_loss": Profile(
        {"wipe": 3, "rollback": 4, "masters": 4, "fail": 5, "crash": 3, "start": 3, "cut": 2, "lossy": 1},
        job=_data_loss,
        first_name="forgetful",
    ),
    "isolated": Profile(
        {"isolate": 8, "sever": 3, "fail": 2, "crash": 1, "start": 2, "cut": 1},
        length=70.0,
        most=3,
        hosts=(2, 3, 3, 4, 4, 5),
        finishing=0.1,
        job=_isolated,
        first_name="lonely",
    ),
    "no_progress": Profile(
        {"ports": 4, "crash": 1, "start": 1}, length=40.0, hosts=(3, 4), job=_no_progress, first_name="barren"
    ),
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
    "node_counts": Profile(
        {"start": 9, "crash": 5, "power": 3, "leave": 4, "drain": 2, "fail": 3, "freeze": 1, "cut": 2, "isolate": 1},
        length=40.0,
        most=10,
        hosts=(3, 5, 6, 7),
        finishing=0.1,
        job=_node_counts,
        first_name="strides",
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
        job=scripted_profiles.leaders_job,
        script=scripted_profiles.leaders,
    ),
    "questions": Profile(
        {"quiet": 8, "ask": 8, "leader": 4, "crash": 2, "fail": 2, "cut": 2, "freeze": 2, "start": 5, "drain": 1},
        length=45.0,
        most=12,
        hosts=(2, 3, 3, 4),
        finishing=0.1,
        job=scripted_profiles.questions_job,
    ),
    "slots": Profile(
        {"start": 8, "cut": 7, "outlive": 5, "freeze": 2, "crash": 2, "power": 1, "fail": 2, "leave": 1},
        length=45.0,
        hosts=(2, 3, 3),
        finishing=0.0,
        job=scripted_profiles.slots_job,
    ),
    "vouched": Profile(
        {"start": 4, "wall": 1, "hang-up": 3, "fail": 1},
        length=55.0,
        most=4,
        hosts=(3, 4),
        finishing=0.0,
        job=scripted_profiles.vouched_job,
        script=scripted_profiles.vouched,
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
        job=scripted_profiles.departed_job,
        script=scripted_profiles.departed,
    ),
    "returned": Profile(
        {"wall": 1, "start": 3, "fail": 2, "cut": 1, "crash": 1},
        length=60.0,
        most=3,
        hosts=(2, 3),
        finishing=0.0,
        job=scripted_profiles.returned_job,
        script=scripted_profiles.returned,
    ),
    "forgeries": Profile(
        {"forge-entry": 3, "forge-row": 4, "start": 4, "fail": 2, "crash": 1, "freeze": 1, "cut": 1, "leave": 1},
        length=30.0,
        most=4,
        job=scripted_profiles.forgeries_job,
        first_name="strangers",
    ),
    "programs": Profile(
        {"start": 18, "fail": 2, "crash": 2, "cut": 1, "leave": 1},
        length=45.0,
        hosts=(2, 2, 3),
        finishing=0.4,
        job=scripted_profiles.programs_job,
    ),
    "checks": Profile(
        {"fail": 14, "drain": 5, "notice": 2, "leave": 2, "start": 6, "crash": 1, "cut": 1, "lossy": 1, "freeze": 1},
        length=45.0,
        most=9,
        hosts=(2, 3, 3, 4),
        finishing=0.1,
        job=_checks,
    ),
    "idle_nodes": Profile(
        {"wall": 1, "start": 2},
        length=42.0,
        most=3,
        hosts=(2, 3),
        finishing=0.0,
        job=scripted_profiles.idle_nodes_job,
        script=scripted_profiles.idle_nodes,
        first_name="crowd",
    ),
}
"""All profiles; a campaign leaves out those that break an assumption."""
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
    "data_loss",
    "fleet",
    "fenced",
    "isolated",
    "data_loss",
    "ending",
    "no_progress",
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
    "forgeries",
    "programs",
    "idle_nodes",
    "suspended",
    "graceful",
    "questions",
    "resizes",
    "node_counts",
    "spares",
    "checks",
)
"""The order in which a campaign repeats the profiles."""


def draw(seed: int, profile: str, liveness: bool = True) -> Plan:
    """Draw the plan of a seed; it is the same on every machine and Python.

    Without ``liveness`` the plan ends with its faults and has more of them: only safety is checked.
    """
    kind = PROFILES[profile]
    name = kind.first_name or profile
    rng = random.Random(f"{name} {seed}")
    hosts = rng.choice(kind.hosts)
    most = rng.choice([hosts, hosts, max(1, hosts - 1)])
    plan = Plan(
        profile=profile,
        seed=seed,
        hosts=hosts,
        min_nodes=rng.choice([1, 1, max(1, most // 2), max(1, most - 1), most]),
        max_nodes=most,
        max_restarts=rng.choice([0, 1, 3, 3]),
        replace_lost=rng.random() < 0.85,
        join_timeout=rng.choice([20.0, 40.0]),
        fence_after=rng.choice([15.0, 30.0]),
        last_call_timeout=rng.choice([0.0, 1.0, 1.0]),
        clock_rates=tuple(round(rng.uniform(0.97, 1.03), 4) for _ in range(hosts)),
        latency=rng.choice([0.0005, 0.002, 0.02, 0.1]),
        timeout=rng.choice([2.0, 4.0]),
        peer_loss_noticed=rng.random() < 0.6,
        work_seconds=round(rng.uniform(3, kind.length), 1) if rng.random() < kind.finishing else 10_000.0,
        finish_spread=rng.choice([0.0, 0.5, 5.0]),
        policy_seconds=rng.choice([0.0, 0.0, 0.0, 0.2, 2.0]),
        has_uid=rng.random() < 0.8,
        faults_end_at=kind.length,
        liveness=liveness,
        replace_agents=True,
        faults=(),
    )
    plan = replace(plan, **kind.job(rng))
    if plan.liveness and plan.hosts > max(2, plan.min_nodes) and not plan.embedded and rng.random() < 0.25:
        plan = replace(plan, lasting_fault=rng.randint(1, 3) if profile != "isolated" else ISOLATED)
    plan = replace(plan, kept_entries=random.Random(f"whole {name} {seed}").choice([4, 8, 64]))
    if profile == "workers":
        policies = random.Random(f"policies {name} {seed}")  # not of `rng`, of which other draws depend
        plan = replace(plan, delay=policies.choice([0.0, 0.0, 2.0, 7.0]), exclude_for=policies.choice([0.0, 0.0, 9.0]))
    drawn = [*_draw_starts(rng, plan), *_draw_faults(rng, plan, kind)]
    return replace(plan, faults=tuple(sorted([*drawn, *kind.script(rng, plan)])))


def _draw_starts(rng: random.Random, plan: Plan) -> list[Fault]:
    together = rng.choice([0.1, 1.0, 3.0])
    first = 1 if plan.embedded else 0  # where the store lives, the first agent is
    return [
        Fault(round(rng.uniform(0.05, together) if host >= first else 0.0, 3), "start", host)
        for host in range(plan.hosts)
    ]


def _draw_faults(rng: random.Random, plan: Plan, kind: Profile) -> list[Fault]:
    kinds, weights = list(kind.weights), list(kind.weights.values())
    count = rng.randint(1, kind.most if plan.liveness else 2 * kind.most)
    bursts = [
        rng.uniform(0.2 if rng.random() < 0.2 else FIRST_ROUND_AT, kind.length - 3.0) for _ in range(1 + count // 3)
    ]
    found = []
    for _ in range(count):
        at = rng.choice(bursts) + rng.choice([0.0, rng.uniform(0, 0.1), rng.uniform(0, 2), rng.uniform(0, 7)])
        name = rng.choices(kinds, weights)[0]
        span, value = _draw_numbers(rng, name, plan)
        at = min(at, kind.length - 0.5)
        first = 1 if plan.embedded and name in ("cut", "slow", "lossy") else 0  # nothing is between it and its store
        found.append(Fault(round(at, 3), name, rng.randrange(first, plan.hosts), round(span, 3), round(value, 3)))
    return found


def _draw_numbers(rng: random.Random, kind: str, plan: Plan) -> tuple[float, float]:
    """Draw a useful span and value of a fault."""
    if plan.profile in ASSUMPTIONS and (found := draw_numbers(rng, kind, plan)) is not None:
        return found
    short, long = rng.uniform(0.05, 1.5), rng.uniform(2.0, 14.0)
    span = rng.choice([short, long])
    match kind:
        case "crash":
            return rng.choice([0.01, 0.3, 3.0]), 0.0
        case "power" | "leave" | "fail" | "wall":
            return 0.0, rng.uniform(-4000, 4000) if kind == "wall" else 0.0
        case "start":
            lot = rng.random()
            if plan.profile == "programs":
                return 0.0, 3.0 if lot < 0.35 else 4.0 if lot < 0.6 else 1.0
            if plan.profile == "slots":
                return 0.0, float(lot < 0.6)
            return 0.0, 2.0 if plan.profile in ("reused", "latecomers") and lot < 0.3 else 1.0 if lot < 0.2 else 0.0
        case "suspend":
            return span, float(rng.randrange(2))
        case "freeze" if plan.profile == "ending":
            return rng.choice([short, plan.fence_after]), 0.0
        case "cut" if plan.profile == "slots":
            return rng.choice([short, rng.uniform(3.0, 5.5), plan.fence_after]), float(rng.randrange(3))
        case "cut":
            return rng.choice([short, long, plan.fence_after]), float(rng.randrange(3))
        case "quiet" | "ask":
            return rng.choice([2.0, 12.0, 30.0]), float(rng.random() < 0.3) if kind == "ask" else 0.0
        case "leader":
            return rng.choice([0.01, 0.3]), rng.choice([0.5, 2.0])
        case "outlive":
            return rng.choice([2.0, 6.0, 0.8 * plan.fence_after]), 0.0
        case "forge-entry":
            return 0.0, float(rng.randrange(6))
        case "forge-row":
            return 0.0, float(rng.randrange(2))
        case "masters":
            return long, float(rng.randrange(1 << plan.hosts))
        case "split":
            return rng.choice([2.0, 3.0]) * plan.fence_after, float(rng.randrange(1 << plan.hosts))
        case "hang-up":
            return rng.choice([short, long, plan.fence_after]), float(rng.randrange(4))
        case "refuse" | "read-only" if plan.profile == "split":
            return rng.choice([short, long, 2 * plan.fence_after]), 0.0
        case "ports":
            return rng.choice([short, 30.0]), 0.0
        case "slow":
            return long, rng.choice([0.3, 1.0, 3.0])
        case "busy":
            return long, rng.choice([0.1, 0.5, 2.0])
        case "lossy":
            return span, rng.choice([0.1, 0.3, 0.7])
        case "isolate" | "sever" if plan.profile == "isolated":
            return rng.choice([short, long, 60.0]), float(rng.randrange(1, 3)) if kind == "sever" else 0.0
        case "notice":
            return rng.choice([2.0, 30.0, 120.0]), 0.0
        case "stuck":
            return rng.choice([short, 25.0]), 0.0
    return span, 0.0
