from __future__ import annotations

from elastic_core.agent.report import Recovery, initialized, restarted
from elastic_core.events import Level

WHOLE = Recovery(began=100.0, detected=100.01, decided=100.015, stopped=100.03, running=100.0925)
PARTS = {"detected_s": 0.01, "decided_s": 0.015, "stopped_s": 0.03, "running_s": 0.0925}


def test_a_phase_that_did_not_happen_has_no_field() -> None:
    assert Recovery(began=1.0, detected=1.0, running=2.0).parts() == {"detected_s": 0.0, "running_s": 1.0}


def test_the_initialization_is_the_last_part() -> None:
    event = initialized(4, 2, 0.07, WHOLE, 100.125)
    assert (event.name, event.level) == ("initialized", Level.DEBUG)
    assert event.message == (
        "the process group of round 4 is there: "
        "detected after 0.010, decided after 0.015, stopped after 0.030, running after 0.092, initialized after 0.125 s"
    )
    assert event.fields == {"round": 4, "workers": 2, "took_s": 0.07, **PARTS, "initialized_s": 0.125}


def test_a_round_that_follows_no_interruption_has_an_initialization_too() -> None:
    event = initialized(1, 8, 3.25, None, 50.0)
    assert event.message == "the process group of round 1 is there: after 3.250 s"
    assert event.fields == {"round": 1, "workers": 8, "took_s": 3.25}


def test_the_cost_of_a_restart_is_one_line_and_says_why_it_was_not_warm() -> None:
    warm, fresh = restarted(4, WHOLE, ""), restarted(4, WHOLE, "the preloaded process has 2 threads")
    assert warm.message == "round 4 runs 0.092 s after the interruption, and its workers started warm"
    assert warm.fields == {"round": 4, "took_s": 0.0925, "warm": True, "why": "", "unlearned": 0, **PARTS}
    assert fresh.message == (
        "round 4 runs 0.092 s after the interruption, and its workers import all modules themselves "
        "(the preloaded process has 2 threads)"
    )
    assert (warm.level, fresh.fields["warm"]) == (Level.INFO, False)


def test_a_warm_restart_says_how_many_modules_are_imported_again() -> None:
    event = restarted(2, WHOLE, "", 1448)
    assert event.message == (
        "round 2 runs 0.092 s after the interruption, and its workers started warm, "
        "and import 1,448 module(s) themselves"
    )
    assert event.fields == {"round": 2, "took_s": 0.0925, "warm": True, "why": "", "unlearned": 1448, **PARTS}
    fresh = restarted(2, WHOLE, "it cannot fork", 7)
    assert fresh.message.endswith("import all modules themselves (it cannot fork)")
