"""The policies of elastic-policies in virtual time: windows, back-off, and a host that comes back after its quarantine.

A job of three hosts runs in the simulator, whose clock jumps; the verdicts are those of the plugin.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from simulator import faults, verdicts
from simulator.plan import Fault, Plan
from simulator.world import World

from elastic_core.incidents import Action, History, Incident, Verdict
from elastic_core.protocol.entries import Closed, Entry, Halt, Leader, Round
from elastic_policies.composition import judge, parse_policies
from elastic_policies.known_failures import explain


def entries(
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    fails: list[tuple[float, int]],
    *,
    seconds: float,
    killed: bool = False,
    crash_at: float = 0.0,
) -> list[Entry]:
    """Every entry of a job in which the worker of a host fails at these instants.

    ``killed`` says that SIGKILL ended it, as far as the policies know; else it is an exception. At ``crash_at`` the
    first leader is killed.
    """

    def verdict(_world: World, incident: Incident, history: History) -> Verdict:
        if killed:
            incident = replace(incident, exit_code=-9, message="")
            known = explain(incident)
            incident = replace(incident, explanation=known)
            facts: dict[str, Any] = {"failure_class": known.failure_class, "hosts_fault": known.hosts_fault}
            past = (replace(one, exit_code=-9, exception="", **facts) for one in history.failures)
            history = replace(history, failures=tuple(past))
        return judge(incident, history, parse_policies(text)) or Verdict(Action.RESTART, "nothing against it")

    monkeypatch.setattr(verdicts, "verdict", verdict)
    crash = [Fault(crash_at, "crash", 0)] if crash_at else []
    starts = [*crash, *(Fault(0.1 + host / 10, "start", host) for host in range(3))]
    plan = Plan(
        profile="workers",
        seed=1,
        min_nodes=1,
        max_restarts=100,
        work_seconds=1e6,
        faults_end_at=seconds,
        liveness=False,
        peer_loss_reported=True,
        faults=tuple(sorted([*starts, *(Fault(at, "fail", host) for at, host in fails)])),
    )
    world = World(plan)
    for fault in plan.faults:
        world.hub.at(fault.at, faults.inject, world, fault)
    try:
        world.hub.run(seconds, lambda: bool(world.checker.violations))
    finally:
        world.hub.close()
    assert not world.checker.violations
    return sorted(world.checker.histories.written.values(), key=lambda entry: entry.index)


def bodies(found: list[Entry], kind: type[Any]) -> list[Any]:
    return [entry.body for entry in found if isinstance(entry.body, kind)]


def sizes(found: list[Entry]) -> list[tuple[int, int]]:
    """The age, in whole seconds, and the number of nodes of each round."""
    count, rounds = 0, []
    for entry in found:
        if isinstance(entry.body, Round):
            count = len(entry.body.members) or count
            rounds.append((int(entry.age), count))
    return rounds


def test_a_flaky_host_is_quarantined_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = [(10.0, 2), (20.0, 2), (30.0, 2)]
    found = entries(monkeypatch, "quarantine=3/1h:40s", fails, seconds=120.0, killed=True)
    assert [count for _, count in sizes(found)] == [3, 3, 3, 2, 3]
    left_out, back = sizes(found)[-2:]
    assert 40 <= back[0] - left_out[0] < 45


def test_another_host_s_failures_do_not_quarantine_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = [(10.0, 2), (20.0, 1), (30.0, 0)]
    found = entries(monkeypatch, "quarantine=3/1h:40s", fails, seconds=60.0, killed=True)
    assert [count for _, count in sizes(found)] == [3, 3, 3, 3]


def test_the_delays_of_a_back_off_double_until_the_job_is_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = [(10.0, 0), (40.0, 0), (70.0, 0), (100.0, 0), (900.0, 0), (930.0, 0)]
    found = entries(monkeypatch, "no_progress=off,backoff=2s..6s", fails, seconds=1000.0)
    delays = [
        round(after.age - halt.age)
        for halt, after in pairwise(entry for entry in found if isinstance(entry.body, Halt | Round))
        if isinstance(halt.body, Halt)
    ]
    assert delays == [2, 4, 6, 2], "the first failure, and the first after a calm time, restart at once"


@pytest.mark.parametrize(
    ("fails", "restarts", "closes"),
    [
        ([10.0, 20.0, 90.0], 3, False),
        ([10.0, 20.0, 90.0, 100.0, 110.0], 4, True),
        ([10.0, 20.0, 30.0], 2, True),
    ],
)
def test_the_window_of_a_budget_slides(
    monkeypatch: pytest.MonkeyPatch, fails: list[float], restarts: int, closes: bool
) -> None:
    found = entries(monkeypatch, "no_progress=off,budget=2/1m", [(at, 0) for at in fails], seconds=150.0)
    assert found[-1].counters.restarts == restarts
    ends = bodies(found, Closed)
    assert bool(ends) is closes
    assert all(end.why == "all restarts of budget=2/1m are spent: 2 within 1m" for end in ends)


@pytest.mark.parametrize(("text", "rounds"), [("", 5), ("no_progress=3", 3)])
def test_a_bug_ends_the_job_after_a_few_failures_whoever_leads(
    monkeypatch: pytest.MonkeyPatch, text: str, rounds: int
) -> None:
    fails = [(10.0, 1), (20.0, 2), (30.0, 1), (40.0, 2), (50.0, 1)]
    found = entries(monkeypatch, text, fails, seconds=90.0, crash_at=25.0)
    assert bodies(found, Leader)
    (end,) = bodies(found, Closed)
    assert end.why.endswith(f"in {rounds} rounds in a row on 2 hosts, and no step or checkpoint (no_progress={rounds})")
    assert found[-1].counters.restarts == rounds - 1
