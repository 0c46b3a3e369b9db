"""The jobs of profiles that test one rule each, and the faults that all their plans have."""

from __future__ import annotations

import random
from typing import Any

from simulator.plan import Fault, Plan


def leaders_job(rng: random.Random) -> dict[str, Any]:
    """Draw a job whose members lose contact to the store, and whose spares lead one after another."""
    return {
        "min_nodes": 1,
        "max_nodes": rng.choice([1, 1, 2]),
        "fence_after": rng.choice([20.0, 30.0]),
        "leader_lifetime": rng.choice([12.0, 14.0, 18.0]),
        "latency": rng.choice([0.0005, 0.002, 0.02]),
        "peer_loss_noticed": False,
        "replace_lost": True,
        "policy_seconds": 0.0,
    }


def leaders(rng: random.Random, plan: Plan) -> list[Fault]:
    """Draw faults: all members are cut off, and soon after the HALT the first leader is killed."""
    cut_at, at = round(rng.uniform(5.0, 7.0), 3), rng.uniform(19.0, 26.0)
    found = [Fault(cut_at, "members", 0, plan.faults_end_at)]
    while at < plan.faults_end_at:
        found.append(Fault(round(at, 3), "leader", 0, rng.choice([0.01, 0.3]), rng.choice([0.5, 2.0])))
        at += plan.leader_lifetime
    return found


def questions_job(rng: random.Random) -> dict[str, Any]:
    """Draw a job whose nodes see no progress, with requests for the position of its ranks."""
    return {"latency": rng.choice([0.0005, 0.002, 0.02]), "max_restarts": 3, "min_nodes": 1}


def slots_job(rng: random.Random) -> dict[str, Any]:
    """Draw a job on hosts of which two may have one host id."""
    return {
        "min_nodes": 1,
        "max_nodes": rng.choice([1, 1, 2, 3]),
        "twin_clock_offset": rng.choice([None, 0.5, -300.0, 300.0]),
        "latency": rng.choice([0.0005, 0.002, 0.02]),
        "peer_loss_noticed": rng.random() < 0.3,
        "replace_lost": True,
    }


def vouched_job(rng: random.Random) -> dict[str, Any]:
    """Draw a job whose members are all lost at once, or seem to be, and that has waiting nodes."""
    return {
        "min_nodes": 1,
        "max_nodes": rng.choice([1, 1, 2]),
        "fence_after": rng.choice([30.0, 40.0]),
        "vouching": rng.choice(["people", "people", "right", "wrong"]),
        "latency": rng.choice([0.0005, 0.002, 0.02]),
        "peer_loss_noticed": False,
        "replace_lost": True,
        "policy_seconds": 0.0,
    }


def vouched(rng: random.Random, plan: Plan) -> list[Fault]:
    """Draw faults: members are cut off, lose power or do not read entries; people vouch for all or some of them."""
    at = round(rng.uniform(5.0, 8.0), 3)
    what, span, value = rng.choice(
        [("members", plan.faults_end_at, 0.0), ("lose-members", 0.0, 0.0), ("deaf", 16.0, 7.5)]
    )
    found = [Fault(at, what, 0, span, value)]
    if plan.vouching == "people":
        after = 7.0 if what == "deaf" else 2.0
        times = [round(at + after + rng.choice([rng.uniform(0, 4), rng.uniform(0, 30)]), 3) for _ in range(plan.hosts)]
        found += [Fault(when, "release", host, 0.0, float(rng.randrange(2))) for host, when in enumerate(times)]
    return found


def departed_job(rng: random.Random) -> dict[str, Any]:
    """Draw a job that needs two nodes, over a store that may lose data."""
    return {
        "min_nodes": 2,
        "max_nodes": 2,
        "may_forget": True,
        "fence_after": 30.0,
        "join_timeout": 40.0,
        "latency": rng.choice([0.0005, 0.002, 0.02]),
        "policy_seconds": 0.0,
    }


def departed(rng: random.Random, plan: Plan) -> list[Fault]:
    """Draw faults: one member leaves, one freezes, two agents replace the first, and the store loses its data."""
    host, at = rng.randrange(2), rng.uniform(7.0, 9.0)
    still = at + rng.uniform(5.5, 8.0)
    found = [
        Fault(at, "leave", host),
        Fault(still, "freeze", 1 - host, rng.choice([15.0, 30.0])),
        *(Fault(still + rng.uniform(0.1, 0.6), "start", host, 0.0, 1.0) for _ in range(2)),
        Fault(still + rng.uniform(1.5, 4.0), "wipe", 0, rng.uniform(0.05, 0.5)),
    ]
    return [Fault(round(one.at, 3), one.kind, one.host, round(one.span, 3), one.value) for one in found]


def returned_job(rng: random.Random) -> dict[str, Any]:
    """Draw a job whose run is killed, over a store that may lose data."""
    return {
        "min_nodes": 1,
        "may_forget": True,
        "replace_lost": True,
        "fence_after": 30.0,
        "latency": rng.choice([0.0005, 0.002, 0.02]),
        "policy_seconds": 0.0,
    }


def returned(rng: random.Random, plan: Plan) -> list[Fault]:
    """Draw faults: a run is killed, the next one begins, and the store is restored to the first one."""
    killed = rng.uniform(7.0, 9.0)
    again = killed + rng.uniform(0.5, 9.0)
    back = again + rng.choice([rng.uniform(0.5, 8.0), rng.uniform(8.0, 25.0)])
    uid = 2.0 if plan.has_uid else 0.0
    found = [
        *(Fault(killed, "power", host) for host in range(plan.hosts)),
        *(Fault(again + rng.uniform(0.0, 1.0), "start", host, 0.0, uid) for host in range(plan.hosts)),
        Fault(back, "copy", 0, rng.uniform(0.05, 0.5), back - killed + rng.choice([-0.1, 0.1, 3.0])),
    ]
    if rng.random() < 0.3:  # and before that, it comes back empty, so that the second run does not know the first
        found.append(Fault(killed + 0.2, "wipe", 0, 0.1))
    return [Fault(round(one.at, 3), one.kind, one.host, round(one.span, 3), round(one.value, 3)) for one in found]


def forgeries_job(rng: random.Random) -> dict[str, Any]:
    """Draw a job with forged writes, mostly with a token. A forged entry can end a job without one."""
    return {
        "has_token": rng.random() < 0.7,
        "liveness": False,
        "min_nodes": 1,
        "latency": rng.choice([0.0005, 0.002, 0.02]),
    }


def programs_job(rng: random.Random) -> dict[str, Any]:
    """Draw a job under whose id other programs are started."""
    return {
        "has_programs": True,
        "is_unnamed": rng.random() < 0.5,
        "has_uid": rng.random() < 0.2,
        "min_nodes": 1,
        "max_nodes": rng.choice([1, 2, 3]),
        "import_seconds": rng.choice([0.0, 0.0, 8.0]),
        "latency": rng.choice([0.0005, 0.002, 0.02]),
    }


def idle_nodes_job(rng: random.Random) -> dict[str, Any]:
    """Draw a job with many waiting nodes and slow reads of the roster."""
    return {
        "idle_nodes": rng.choice([100, 100, 300, 1000]),
        "roster_seconds": rng.choice([0.05, 0.6, 1.3, 3.3]),
        "latency": rng.choice([0.0005, 0.002, 0.02]),
        "timeout": 8.0,
        "min_nodes": 1,
        "policy_seconds": 0.0,
    }


def idle_nodes(rng: random.Random, plan: Plan) -> list[Fault]:
    """Draw faults: some of the waiting nodes fall silent, one after another."""
    times = [round(rng.uniform(8.0, 18.0), 3) for _ in range(3)]
    return [Fault(at, "hush", 0, 0.0, float(rng.randrange(plan.idle_nodes))) for at in times]
