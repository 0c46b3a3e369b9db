"""The simulator's own tools: virtual time, plans as text, and making them small."""

from __future__ import annotations

import ast
import builtins
import symtable
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
from simulator import engine, shrinker
from simulator.assumptions import ASSUMPTIONS
from simulator.checker import Violation
from simulator.defect import Defect, plant_in_source
from simulator.defects import DEFECTS
from simulator.engine import Clock, Hub, Process
from simulator.plan import Fault, Plan
from simulator.play import Outcome, play
from simulator.profiles import ORDER, PROFILES, draw


@pytest.mark.parametrize("profile", PROFILES)
def test_a_plan_survives_being_written_down(profile: str) -> None:
    plan = draw(7, profile)
    assert Plan.load(plan.dump()) == plan


def test_a_plan_with_something_unknown_is_refused() -> None:
    text = draw(7, "agents").dump().replace('"hosts"', '"hotels"')
    with pytest.raises(ValueError, match="hotels"):
        Plan.load(text)


@pytest.mark.parametrize("defect", DEFECTS, ids=[defect.name.replace(" ", "-") for defect in DEFECTS])
def test_a_defect_can_be_planted(defect: Defect) -> None:
    planted = plant_in_source(defect)
    assert ast.dump(planted.tree) != ast.dump(ast.parse(planted.path.read_text()))
    assert unknown_names(planted.tree) == set(), "each run would end with a NameError, and no rule would be tested"


def unknown_names(tree: ast.Module) -> set[str]:
    """Return the global names that a module uses and does not have."""
    module = symtable.symtable(ast.unparse(tree), "module", "exec")
    known = {each.get_name() for each in module.get_symbols() if each.is_assigned() or each.is_imported()}
    unknown, tables = set[str](), [module]
    for table in tables:
        tables += table.get_children()
        unknown |= {each.get_name() for each in table.get_symbols() if each.is_global() and each.is_referenced()}
    return {name for name in unknown - known - set(dir(builtins)) if not name.startswith("__")}


MODULES = {
    "first.py": """
        THREE = 3
        def double(one):
            return one + one  # a comment
        class Pair:
            def swap(self):
                a = self.one
                b = self.two
                return b, a
            def double(self):
                return self.one * 2
    """,
    "second.py": """
        TWO = 2
        THREE = 3
        def half(one):
            return one / 2 + one / 2
    """,
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with these modules, in which definitions are looked for."""
    (tmp_path / "somewhere").mkdir()
    for name, text in MODULES.items():
        (tmp_path / "somewhere" / name).write_text(dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("simulator.defect.PACKAGES", ("somewhere",))


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("within", "old", "new", "leads_to"),
    [
        ("double", "(one+\n one) # with spaces", "one", "def double(one):\n    return one"),
        ("Pair.double", "self.one * 2", "self.one", "def double(self):\n        return self.one"),
        ("Pair.swap", "a = self.one\nb = self.two", "a = b = 0", "a = b = 0\n        return (b, a)"),
        ("double", "return one + one", "if one:\n    return 0", "if one:\n        return 0"),
        ("Pair", "return self.one * 2", "pass", "def double(self):\n        pass"),
        ("TWO", "2", "4", "TWO = 4\nTHREE = 3"),
        ("first.THREE", "3", "4", "THREE = 4\n\ndef double"),
    ],
)
def test_a_piece_of_code_is_found_by_its_syntax_tree(within: str, old: str, new: str, leads_to: str) -> None:
    planted = plant_in_source(Defect("it", within, old, new, "agents"))
    assert leads_to in ast.unparse(planted.tree)
    compile(planted.tree, planted.path, "exec")


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("within", "old", "problem"),
    [
        ("double", "one - one", r"in none of 1 definition\(s\)"),
        ("swap", "self.one", r"in none of 0 definition\(s\)"),
        ("half", "one / 2", r"2 times \(somewhere\.second:5, somewhere\.second:5\)"),
        ("THREE", "3", r"2 times \(somewhere\.first:2, somewhere\.second:3\)"),
    ],
)
def test_a_defect_whose_piece_of_code_is_not_there_once_is_refused(within: str, old: str, problem: str) -> None:
    with pytest.raises(LookupError, match=rf"'it': {within} has .* {problem}.* not once"):
        plant_in_source(Defect("it", within, old, "0", "agents"))


def test_a_campaign_takes_every_profile() -> None:
    assert set(ORDER) == set(PROFILES) - set(ASSUMPTIONS)


def test_a_violated_plan_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def violated(plan: Plan) -> Outcome:
        """By the crash of host 1 after an agent was started there."""
        kinds = [fault.kind for fault in plan.faults if fault.host == 1]
        found = "start" in kinds and "crash" in kinds[kinds.index("start") :]
        return replace(play(Plan("agents", 0)), violation=Violation("I1", 3.0, "it was") if found else None)

    monkeypatch.setattr(shrinker, "play", violated)
    crash = Fault(7.123, "crash", 1, 0.3)
    plan = draw(3, "everything")
    small = shrinker.shrink(replace(plan, hosts=5, faults=tuple(sorted([*plan.faults, crash]))))
    assert [fault.kind for fault in small.faults] == ["start", "crash"]
    assert small.hosts == 2
    assert small.clock_rates == ()


def test_a_clock_drifts_and_stands_still() -> None:
    hub = Hub(0)
    clock = Clock(hub, 100.0, 1.1)
    hub.now = 10.0
    assert clock.now() == pytest.approx(111.0)
    clock.lost = 4.0
    assert clock.now() == pytest.approx(106.6)


def test_a_wait_lasts_for_its_time_by_its_own_clock() -> None:
    hub = Hub(0)
    process = Process("a", Clock(hub, 0.0, 0.5))
    heard: list[tuple[float, bool]] = []

    def body() -> None:
        condition = engine.Condition(hub)
        with condition:
            heard.append((round(hub.now, 3), condition.wait(2.0)))

    hub.start(process, body)
    hub.run(10.0, lambda: False)
    assert heard == [(0.0, False)]
    assert process.tasks[0].done
    hub.close()


def test_a_frozen_process_goes_on_when_it_is_thawed() -> None:
    hub = Hub(0)
    process = Process("a", Clock(hub, 0.0, 1.0))
    woken: list[float] = []
    condition = engine.Condition(hub)

    def body() -> None:
        assert condition.wait() is True
        woken.append(hub.now)

    hub.start(process, body)
    hub.at(1.0, setattr, process, "frozen", True)
    hub.at(2.0, condition.notify)
    hub.at(5.0, process.resume, hub)
    hub.run(10.0, lambda: False)
    assert woken == [5.0]
    hub.close()


def test_threads_that_still_wait_at_the_end_are_ended() -> None:
    hub = Hub(0)
    process = Process("a", Clock(hub, 0.0, 1.0))
    ended: list[str] = []

    def body() -> None:
        try:
            engine.Condition(hub).wait()
        finally:
            ended.append("it")

    hub.start(process, body)
    hub.run(1.0, lambda: False)
    hub.close()
    assert ended == ["it"]
