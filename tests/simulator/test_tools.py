"""The simulator's own tools: virtual time, plans as text, and making them small."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
from simulation import engine, shrinking
from simulation.defects import MUTANTS
from simulation.engine import Clock, Hub, Process
from simulation.lots import ORDER, PROFILES, draw
from simulation.mutant import Mutant
from simulation.plan import Fault, Plan
from simulation.play import Outcome, play
from simulation.truth import Violation


@pytest.mark.parametrize("profile", PROFILES)
def test_a_plan_survives_being_written_down(profile: str) -> None:
    plan = draw(7, profile)
    assert Plan.load(plan.dump()) == plan


def test_a_plan_with_something_unknown_is_refused() -> None:
    text = draw(7, "agents").dump().replace('"hosts"', '"hotels"')
    with pytest.raises(ValueError, match="hotels"):
        Plan.load(text)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name.replace(" ", "-") for mutant in MUTANTS])
def test_a_defect_quotes_what_its_module_has_once(mutant: Mutant) -> None:
    spec = importlib.util.find_spec(mutant.module)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).read_text().count(mutant.old) == 1


def test_a_campaign_takes_every_profile() -> None:
    assert set(ORDER) == set(PROFILES)


def test_a_violated_plan_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def violated(plan: Plan) -> Outcome:
        """By the crash of host 1 after an agent was started there."""
        kinds = [fault.kind for fault in plan.faults if fault.host == 1]
        found = "start" in kinds and "crash" in kinds[kinds.index("start") :]
        return replace(play(Plan("agents", 0)), violation=Violation("I1", 3.0, "it was") if found else None)

    monkeypatch.setattr(shrinking, "play", violated)
    crash = Fault(7.123, "crash", 1, 0.3)
    plan = draw(3, "everything")
    small = shrinking.shrink(replace(plan, hosts=5, faults=tuple(sorted([*plan.faults, crash]))))
    assert [fault.kind for fault in small.faults] == ["start", "crash"]
    assert small.hosts == 2
    assert small.rates == ()


def test_a_clock_drifts_and_stands_still() -> None:
    hub = Hub(0)
    clock = Clock(hub, 100.0, 1.1)
    hub.now = 10.0
    assert clock.now() == pytest.approx(111.0)
    clock.lost = 4.0
    assert clock.now() == pytest.approx(106.6)


def test_a_wait_lasts_for_its_time_by_its_own_clock() -> None:
    hub = Hub(0)
    engine.use(hub)
    process = Process("a", Clock(hub, 0.0, 0.5))
    heard: list[tuple[float, bool]] = []

    def body() -> None:
        condition = engine.Condition()
        with condition:
            heard.append((round(hub.now, 3), condition.wait(2.0)))

    hub.start(process, body)
    hub.run(10.0, lambda: False)
    assert heard == [(0.0, False)]
    assert process.tasks[0].done
    hub.close()


def test_a_frozen_process_goes_on_when_it_is_thawed() -> None:
    hub = Hub(0)
    engine.use(hub)
    process = Process("a", Clock(hub, 0.0, 1.0))
    woken: list[float] = []
    condition = engine.Condition()

    def body() -> None:
        assert condition.wait() is True
        woken.append(hub.now)

    hub.start(process, body)
    hub.at(1.0, setattr, process, "frozen", True)
    hub.at(2.0, condition.notify)
    hub.at(5.0, process.thaw, hub)
    hub.run(10.0, lambda: False)
    assert woken == [5.0]
    hub.close()


def test_threads_that_still_wait_at_the_end_are_ended() -> None:
    hub = Hub(0)
    engine.use(hub)
    process = Process("a", Clock(hub, 0.0, 1.0))
    ended: list[str] = []

    def body() -> None:
        try:
            engine.Condition().wait()
        finally:
            ended.append("it")

    hub.start(process, body)
    hub.run(1.0, lambda: False)
    hub.close()
    assert ended == ["it"]
