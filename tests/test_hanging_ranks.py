"""Forms in which a rank hangs while the others wait for it: each is found, and the rank comes first."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from rig import Agent, Rig
from waiting import HANGS, WINDOW, program, reports, start

ENDED = ["sleeps", "a queue", "another collective", "stopped"]


def check_first_report(rig: Rig, agent: Agent, name: str) -> None:
    """Wait for the first report, and check that it begins with rank 1 and says where the rank is."""
    assert rig.wait_until(lambda: reports(agent)), agent.output
    first = reports(agent)[0]["stacks"].splitlines()[0]
    assert re.search(HANGS[name][1], first), reports(agent)
    assert "rank 1" in first or name == "another collective", first


@pytest.mark.parametrize("name", ENDED)
def test_a_rank_that_hangs_comes_first_and_is_ended_at_the_third_look(rig: Rig, name: str) -> None:
    agent = start(rig, program(name), f"--hang_timeout={WINDOW}")
    check_first_report(rig, agent, name)
    assert agent.exit_code() == 1, agent.output
    agent.wait_for(rf"what    Hang: no progress for {WINDOW} s; ")
    stacks = [found["stacks"] for found in reports(agent)]
    assert all(one != other for one, other in pairwise(stacks)), "a report that has not changed is not printed again"


@pytest.mark.parametrize("name", [name for name in HANGS if name not in ENDED])
def test_a_rank_that_hangs_comes_first(rig: Rig, name: str) -> None:
    agent = start(rig, program(name), f"--hang_window={WINDOW}")
    check_first_report(rig, agent, name)
