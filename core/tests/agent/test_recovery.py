from __future__ import annotations

from elastic_core.agent.recovery import Recovery
from elastic_core.events import Level


def test_each_part_is_told_by_when_it_was_over() -> None:
    recovery = Recovery(began=100.0, detected=100.01, decided=100.015, stopped=100.03)
    event = recovery.event(4, 100.0925)
    assert (event.name, event.level) == ("recovered", Level.DEBUG)
    assert event.message == (
        "round 4 runs: detected after 0.010, decided after 0.015, stopped after 0.030, running after 0.092 s"
    )
    assert event.fields == {
        "round": 4,
        "detected_s": 0.01,
        "decided_s": 0.015,
        "stopped_s": 0.03,
        "running_s": 0.0925,
    }


def test_what_did_not_happen_is_not_told() -> None:
    assert Recovery(began=1.0, detected=1.0).event(2, 2.0).fields == {"round": 2, "detected_s": 0.0, "running_s": 1.0}
