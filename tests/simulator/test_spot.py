"""Rule L13 on traces of spot instances: it keeps more work than a resize at once, or after a minute, does."""

from __future__ import annotations

import pytest
from simulator.spot import INTERVALS, TRACES
from simulator.spot_job import Change, Job, Strategy, at_once, load, node_seconds, rule, unknown, wait_a_minute
from simulator.spot_leader import LedJob

STRATEGIES = (at_once, wait_a_minute, unknown, rule)


@pytest.mark.parametrize("start", [10.0, 30.0, 60.0, 120.0])
@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("name", TRACES)
def test_the_rule_keeps_more_work_than_a_resize_at_once_or_after_a_minute(
    name: str, interval: float, start: float
) -> None:
    trace = load(name)
    useful = {strategy: Job(strategy, interval, start=start).play(trace).useful for strategy in STRATEGIES}
    simple = max(useful[at_once], useful[wait_a_minute])
    assert useful[rule] > simple
    assert useful[unknown] > simple


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("known", [True, False])
def test_the_leader_decides_as_the_rule_says(name: str, known: bool) -> None:
    by_rule, led = Job(rule if known else unknown, 900.0).play(load(name)), LedJob(interval=900.0, known=known)
    led.play(load(name))
    assert (led.resizes, led.members) == (by_rule.resizes, by_rule.members)
    assert led.useful == pytest.approx(by_rule.useful, rel=0.01)


def test_the_traces_have_the_expected_changes() -> None:
    p3, g4dn = (load(name) for name in TRACES)
    assert (len({change.at for change in p3 if change.removed}), sum(len(change.removed) for change in p3)) == (79, 167)
    assert p3[-1].at / 3600 == pytest.approx(11.4, abs=0.05)
    assert node_seconds(p3) / (p3[-1].at - p3[0].at) == pytest.approx(24, abs=1)
    assert len(g4dn) == 99


JOIN = [Change(0.0, ("a", "b"), ()), Change(450.0, ("c",), ()), Change(1000.0, ("d",), ("b",))]


@pytest.mark.parametrize(
    ("strategy", "resizes", "lost", "useful"),
    [
        # The training begins at 10 s and saves at 110, 210, 310 and 410 s.
        pytest.param(at_once, 1, 2 * 40.0 + 3 * 38.0, 2 * 400.0 + 3 * 500.0, id="at once, at 450 s"),
        pytest.param(
            wait_a_minute, 1, 2 * 0.0 + 3 * 78.0, 2 * 500.0 + 3 * 400.0, id="at 510 s, by chance a checkpoint"
        ),
        pytest.param(rule, 1, 2 * 2.0 + 3 * 76.0, 2 * 500.0 + 3 * 400.0, id="after the checkpoint at 510 s"),
    ],
)
def test_a_job_by_hand(strategy: Strategy, resizes: int, lost: float, useful: float) -> None:
    """Each restart takes 2 s to stop and 10 s to start."""
    job = Job(strategy, 100.0, start=10.0).play(JOIN)
    assert job.resizes == resizes
    assert (job.lost, job.useful) == pytest.approx((lost, useful))
    assert job.members == {"a", "c", "d"}
