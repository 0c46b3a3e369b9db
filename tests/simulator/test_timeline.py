"""The output of the command line for a violated plan: how to play it again, the plan made small, and its timeline.

Read by people, who then know which fault led to which decision, and which of these breaks a rule.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from simulator.plan import Plan

ROOT = Path(__file__).parents[2]
DEFECT = "a HALT is not obeyed"
RULE = "S1"
"""Which it breaks: what the leader decides, all do."""
COMMAND_LINE = """\
import contextlib
import sys
import types

from simulator import campaign, plant
from simulator.defects import DEFECTS

name = sys.argv.pop(1)
plant.plant(next(defect for defect in DEFECTS if defect.name == name))

from simulator.__main__ import main  # imports core

here = types.SimpleNamespace(map=map)  # other processes would not have the defect
campaign.pool = lambda jobs: contextlib.nullcontext(here)
sys.exit(main())
"""
"""``python -m simulator`` with a defect, whose name is the first argument."""


@dataclass(frozen=True)
class Channel:
    """One of the timeline."""

    at: float
    who: str
    what: str


@pytest.fixture(scope="module")
def campaign() -> str:
    """Return the output of a campaign."""
    return _planted("--plans", "20")


@pytest.fixture(scope="module")
def number(campaign: str) -> str:
    """The number that it names of the first plan that is violated."""
    found = re.search(rf"^plan (\d+): {RULE} at \d+\.\d+ s: ", campaign, re.MULTILINE)
    assert found is not None, campaign
    return found[1]


@pytest.fixture(scope="module")
def shown(campaign: str, number: str) -> str:
    """The plan and its timeline, as they are printed at the end of the campaign."""
    _, asked, shown = campaign.partition(f"(again with: --number {number} --shrink):\n\n")
    assert asked, campaign
    return shown


def test_a_violated_plan_is_shown_again_by_its_number(shown: str, number: str) -> None:
    assert _planted("--number", number, "--shrink") == shown


def test_a_violated_plan_is_shown_again_by_what_is_printed_of_it(shown: str, tmp_path: Path) -> None:
    kept = tmp_path / "violated.json"
    kept.write_text(_plan(shown).dump())
    assert _planted("--replay", str(kept)) == shown


def test_a_violated_plan_is_small(campaign: str, number: str, shown: str) -> None:
    drawn = _plan(_planted("--number", number))
    assert len(_plan(shown).faults) < len(drawn.faults)


def test_a_timeline_is_in_the_order_of_virtual_time(shown: str) -> None:
    instants = [line.at for line in _timeline(shown)]
    assert instants == sorted(instants)
    assert instants[0] < instants[-1]


def test_a_timeline_has_every_fault_when_and_where_it_happens(shown: str) -> None:
    plan = _plan(shown)
    faults = [line for line in _timeline(shown) if line.what.startswith("FAULT: ")]
    expected = [Channel(fault.at, "abcdefghijkl"[fault.host], f"FAULT: {fault}") for fault in plan.faults]
    assert faults == expected
    assert expected[0].what == f"FAULT: start host {plan.faults[0].host}", "somebody has to be there first"


def test_a_timeline_tells_who_decides_what_and_why_up_to_the_violation(shown: str) -> None:
    lines = _timeline(shown)
    decisions = [line for line in lines if line.what.startswith("writes entry ")]
    opened, sealed, halted = (
        _first(decisions, rf"writes entry \d+, term \d+: {decision}")
        for decision in (r"OPEN of run \S+, scheduler's uid", r"ROUND 1 of .+; restarts 0: .+", r"HALT 1, \w+: .+")
    )
    trains = _first(lines, "round 1 trains")
    violation = _first(lines, rf"{RULE}: .+")
    in_order = [lines.index(line) for line in (opened, sealed, trains, halted, violation)]
    assert in_order == sorted(in_order)
    agents = {line.who for line in lines if line.what.startswith("starts on host ")}
    members = sealed.what.partition(" of ")[2].partition(";")[0].split(", ")
    assert {*members, *(line.who for line in decisions)} <= agents, "each decision names who takes it, and for whom"


def test_a_timeline_ends_with_the_rule_that_is_broken_and_when_and_how(shown: str) -> None:
    lines = _timeline(shown)
    [violation] = [line for line in lines if line.who == "violation"]
    assert violation.at == lines[-1].at, "nothing happens after it"
    rule, how = violation.what.split(": ", 1)
    assert rule == RULE
    summary, digest = shown.rstrip("\n").rsplit("\n\n", 1)[1].split("; ")
    assert summary == f"{rule} at {violation.at:.3f} s: {how}"
    assert re.fullmatch(r"the timeline's digest is [0-9a-f]{16}", digest)


def _plan(shown: str) -> Plan:
    return Plan.load(shown[: shown.index("\n}\n") + 3])


def _timeline(shown: str) -> list[Channel]:
    """Every line between the plan and the last one."""
    lines = shown[shown.index("\n}\n") + 3 :].strip("\n").split("\n")[:-2]
    found = [re.fullmatch(r" *(\d+\.\d{3})  (\S+) +(\S.*)", line) for line in lines]
    assert all(found), "\n".join(lines)
    return [Channel(float(match[1]), match[2], match[3]) for match in found if match is not None]


def _first(lines: list[Channel], pattern: str) -> Channel:
    found = next((line for line in lines if re.match(pattern, line.what)), None)
    assert found is not None, f"nothing like {pattern!r} in:\n" + "\n".join(map(str, lines))
    return found


def _planted(*args: str) -> str:
    """Return the output of the command line for the violated plan; by another interpreter, as core is broken."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", COMMAND_LINE, DEFECT, *args]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (1, ""), result.stdout + result.stderr
    return result.stdout
