"""Healthy jobs in which a rank prints, writes or reports for long while the others wait for it: none is blamed."""

from __future__ import annotations

import signal
import time

import pytest
from rig import Rig
from waiting import WINDOW, WRITING, check_healthy, program, reports, start


@pytest.mark.parametrize("name", WRITING)
def test_a_rank_that_shows_its_work_is_neither_blamed_nor_ended(rig: Rig, name: str) -> None:
    check_healthy(rig, program(name))


def test_a_rank_is_not_blamed_for_what_its_agent_did_not_see_while_it_was_paused(rig: Rig) -> None:
    agent = start(rig, program("reads what a child makes slowly"), f"--hang_timeout={WINDOW}")
    agent.wait_for("it reads")
    time.sleep(0.25)  # the agent has seen that, and no silence yet
    agent.signal(signal.SIGSTOP)
    time.sleep(WINDOW + 1.0)
    agent.signal(signal.SIGCONT)
    assert agent.exit_code() == 0, agent.output
    assert not [event for event in reports(agent) if event["rank"] is not None], agent.output
