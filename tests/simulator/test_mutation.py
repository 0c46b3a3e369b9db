"""The tool that makes mutants: its operators, and that what it makes is tried where it runs."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from mutation.__main__ import MODULES, equivalents, find, trials
from mutation.operators import functions, mutants

ROOT = Path(__file__).parents[2]


def changes(text: str) -> list[str]:
    """Return the changes of the mutants of a module's functions."""
    tree = ast.parse(dedent(text))
    made = [mutant for name, definition in functions(tree) for mutant in mutants("module", name, definition)]
    assert ast.dump(tree) == ast.dump(ast.parse(dedent(text))), "nothing stays changed"
    return [mutant.name for mutant in made]


@pytest.mark.parametrize(
    ("line", "mutated"),
    [
        ("x = a < b", ["a <= b", "a >= b"]),
        ("x = a == b", ["a != b"]),
        ("x = a is not b", ["a is b"]),
        ("x = a not in b", ["a in b"]),
        ("x = a and b and c", ["a or b or c", "b and c", "a and c", "a and b"]),
        ("x = a or b", ["a and b", "b", "a"]),
        ("x = not a", ["a"]),
        ("x = a + b", ["a - b"]),
        ("x = a | b", ["a & b"]),
        ("x = min(a, b)", ["max(a, b)"]),
        ("x = any(a)", ["all(a)"]),
        ("x = a.number(3)", ["a.number(4)"]),
        ("x = a.number(True)", ["a.number(False)"]),
        ("x = a if b else c", ["a if True else c", "a if False else c"]),
        ("x = [i for i in a if i]", ["[i for i in a]"]),
        ("x = replace(a, b=b, c=c)", ["replace(a, c=c)", "replace(a, b=b)"]),
        ("x = [*a, *b]", ["[*b]", "[*a]"]),
        ("x = a[:b]", ["a[:]"]),
        ("return a", ["return None"]),
        ("return None", []),
        ("a.call(b)", ["pass"]),
        ("a = b", ["pass"]),
        ("x = b", []),
        ("x.y = b", ["pass"]),
        ("raise ValueError(3)", ["pass"]),
        ("x = f'{a + 1}'", []),
        ("x: int = a", []),
    ],
)
def test_a_line_is_changed_in_every_small_way(line: str, mutated: list[str]) -> None:
    made = changes(f"def f(a, b, c=3):\n    {line}\n    return None")
    assert [name.partition(" -> ")[2].removeprefix("x = ") for name in made] == mutated


def test_a_predicate_says_yes_and_no() -> None:
    assert changes("def f(a) -> bool:\n    return a") == ["f: return a -> return True", "f: return a -> return False"]


def test_a_case_is_left_out_and_its_guard_is() -> None:
    text = """
        def f(a):
            match a:
                case 1 if a.b:
                    return None
    """
    assert changes(text) == ["f: case 1 if a.b: -> case 1 if False:", "f: case 1 if a.b: -> case 1:"]


def test_the_same_change_at_another_place_has_a_number_and_what_is_text_is_left_alone() -> None:
    text = """
        class A:
            def f(self):
                return self.text(0), self.text(0)
            def g(self) -> str:
                return self.text(0)
    """
    assert changes(text) == [
        "A.f: return (self.text(0), self.text(0)) -> return None",
        "A.f: self.text(0) -> self.text(1)",
        "A.f: self.text(0) -> self.text(1) #2",
    ]


@pytest.mark.parametrize("ending", MODULES)
def test_each_module_that_is_mutated_is_there_once(ending: str) -> None:
    name, path = find(ending)
    assert path.is_file()
    assert name.endswith(f".{ending}")


def test_every_mutant_that_is_listed_as_equivalent_exists_and_has_a_reason() -> None:
    listed = equivalents()
    assert sorted(listed.keys() - {mutant.name for mutant, *_ in trials(MODULES)}) == []
    assert all(listed.values())


def test_mutants_are_tried_by_tests_and_then_by_plans(tmp_path: Path) -> None:
    results = tmp_path / "results"
    options = ["failure_detector", "--only=takeover_at: ", "--plans=40", "--jobs=2", f"--results={results}"]
    tests = ["--tests=core/tests/protocol/test_members.py", "--tests=core/tests/session/test_contact.py"]
    command = [sys.executable, "-m", "mutation", *options, *tests]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "harness")}
    first = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    tried = [json.loads(line) for line in results.read_text().splitlines()]
    assert {one["status"] for one in tried} <= {"killed", "survived"}, first.stdout + first.stderr
    by_plans = [one for one in tried if one["status"] == "killed" and "plan" in one["by"]]
    assert "takeover_at: return due + SUCCESSOR_SPACING_SECONDS * place -> return None" in [
        one["name"] for one in by_plans
    ]
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert "to try" not in again.stdout, "what is known is not tried again"
    assert f"failure_detector {len(tried):>8}" in again.stdout
