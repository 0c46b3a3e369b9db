"""Healthy jobs in which a rank works or waits for long, none of which is blamed, and hangs of which each is found."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rig import WARM, Agent, Rig
from waiting import HANGS, HEALTHY, HEALTHY_ALONE, WINDOW, program, program_alone


def start(rig: Rig, text: str, *flags: str) -> Agent:
    Path(rig.folder, "train.py").write_text(text)
    return rig.run("--nproc_per_node=2", "--max_restarts=0", "--event_log=console", *flags, "train.py", env=WARM)


def hangs(agent: Agent) -> list[dict[str, Any]]:
    """The reports of hangs so far."""
    lines = [line for line in agent.output.splitlines() if line.startswith("{")]
    return [event["fields"] for event in map(json.loads, lines) if event["name"] == "hang"]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_rank_that_works_is_neither_blamed_nor_ended(rig: Rig, name: str) -> None:
    agent = start(rig, program(name), f"--hang_timeout={WINDOW}")
    assert agent.exit_code() == 0, agent.output
    assert [event for event in hangs(agent) if event["rank"] is not None] == []


@pytest.mark.parametrize("name", ["sleeps", "a queue", "another collective", "stopped"])
def test_a_rank_that_hangs_is_ended_at_the_third_look(rig: Rig, name: str) -> None:
    agent = start(rig, program(name), f"--hang_timeout={WINDOW}")
    assert agent.exit_code() == 1, agent.output
    agent.wait_for(rf"what    Hang: no progress for {WINDOW} s; ")
    reports = [found["stacks"] for found in hangs(agent)]
    assert all(one != other for one, other in pairwise(reports)), "a report that has not changed is not printed again"


@pytest.mark.parametrize("name", HEALTHY_ALONE)
def test_a_rank_that_works_while_others_go_on_is_neither_blamed_nor_ended(rig: Rig, name: str) -> None:
    agent = start(rig, program_alone(HEALTHY_ALONE[name]), f"--hang_timeout={WINDOW}")
    assert agent.exit_code() == 0, agent.output
    assert [event for event in hangs(agent) if event["rank"] is not None] == []


def test_a_rank_that_hangs_while_others_go_on_is_ended(rig: Rig) -> None:
    agent = start(rig, program_alone("time.sleep(1000)", 1000.0), f"--hang_timeout={WINDOW}")
    assert agent.exit_code() == 1, agent.output
    line = r"rank 1 is in form \(train.py:\d+\), while other ranks go on to newer steps"
    agent.wait_for(rf"what    Hang: no progress for {WINDOW} s; {line}")
    assert [(event["rank"], event["step"]) for event in hangs(agent)] == [(1, 5)], "it is printed once"


@pytest.mark.parametrize("name", HANGS)
def test_a_rank_that_hangs_comes_first(rig: Rig, name: str) -> None:
    agent = start(rig, program(name), f"--hang_window={WINDOW}")
    assert rig.wait_until(lambda: hangs(agent)), agent.output
    first = hangs(agent)[0]["stacks"].splitlines()[0]
    assert re.search(HANGS[name][1], first), hangs(agent)
    assert "rank 1" in first or name == "another collective", first
