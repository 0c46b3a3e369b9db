"""Jobs in which one rank goes on to newer steps while the other works or hangs at an older one."""

from __future__ import annotations

import pytest
from rig import Rig
from waiting import HEALTHY_ALONE, WINDOW, check_healthy, program_alone, reports, start


@pytest.mark.parametrize("name", HEALTHY_ALONE)
def test_a_rank_that_works_while_others_go_on_is_neither_blamed_nor_ended(rig: Rig, name: str) -> None:
    check_healthy(rig, program_alone(HEALTHY_ALONE[name]))


def test_a_rank_that_hangs_while_others_go_on_is_ended(rig: Rig) -> None:
    agent = start(rig, program_alone("time.sleep(1000)", 1000.0), f"--hang_timeout={WINDOW}")
    assert agent.exit_code() == 1, agent.output
    line = r"rank 1 is in form \(train.py:\d+\), while other ranks go on to newer steps"
    agent.wait_for(rf"what    Hang: no progress for {WINDOW} s; {line}")
    assert [(event["rank"], event["step"]) for event in reports(agent)] == [(1, 5)], "it is printed once"
