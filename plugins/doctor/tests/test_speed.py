from __future__ import annotations

import pytest

from elastic_core.config.run import Timing
from elastic_doctor.findings import State
from elastic_doctor.store import judge_heartbeats, judge_wake_ups

FAST, SLOW = Timing(beat_interval=0.1, lost_after=0.3), Timing()


@pytest.mark.parametrize(
    ("seconds", "timing", "state"),
    [
        ([0.001, 0.002, 0.003], SLOW, State.OK),
        ([0.001, 0.001, 1.5], SLOW, State.WARNING),
        ([0.25, 0.25, 0.3], SLOW, State.WARNING),
        ([2.5, 2.5, 2.5], SLOW, State.WRONG),
        ([0.001, 0.001, 0.4], FAST, State.WRONG),
        ([0.02, 0.02, 0.02], FAST, State.WARNING),
    ],
)
def test_heartbeats_are_held_against_the_intervals_of_the_job(
    seconds: list[float], timing: Timing, state: State
) -> None:
    assert judge_heartbeats(seconds, timing).state is state


@pytest.mark.parametrize(
    ("seconds", "state"),
    [([0.001, 0.4], State.OK), ([0.001, 0.002, 0.6], State.WARNING), ([0.2, 1.1, 1.2], State.WRONG)],
)
def test_wake_ups_are_held_against_the_suspicion(seconds: list[float], state: State) -> None:
    assert judge_wake_ups(seconds).state is state


def test_figures_are_told_in_milliseconds() -> None:
    finding = judge_heartbeats([0.001, 0.002, 0.0105], SLOW)
    assert finding.seen.startswith("2.0 ms, the worst of 3 10.5 ms; a node heartbeats every 2 s, and is lost after 6 s")
    assert finding.measured == {"median_ms": 2.0, "worst_ms": 10.5, "count": 3}


def test_the_advice_of_slow_heartbeats_is_a_setting_that_core_takes() -> None:
    advice = judge_heartbeats([2.1, 2.2, 2.4], SLOW).advice
    assert advice is not None
    assert "beat_interval=12,lost_after=36" in advice
