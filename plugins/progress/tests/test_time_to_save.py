"""Workers that were told to stop, and the time that they had to save: a table."""

from __future__ import annotations

import pytest

from elastic_core.events import Level
from elastic_core.monitors import PlannedStop
from elastic_progress.checkpoints import saved_event, time_to_save

BEGIN = "the workers of round 3 had 30.0 s to save, and ended after 5.0 s: "


@pytest.mark.parametrize(
    ("step", "checkpoint", "snapshot", "text", "level"),
    [
        (812, (812, 1.5), None, "a checkpoint of step 812 was saved 1.5 s before the end; no step is lost", Level.INFO),
        (
            812,
            (810, 1.5),
            None,
            "a checkpoint of step 810 was saved 1.5 s before the end; 2 step(s) are lost",
            Level.INFO,
        ),
        (None, (None, 1.5), None, "a checkpoint was saved 1.5 s before the end", Level.INFO),
        (
            812,
            (800, 60.0),
            None,
            "they saved none then, and the newest of step 800 was 60.0 s old at the end; 12 step(s) are lost",
            Level.WARNING,
        ),
        (
            812,
            (812, 60.0),
            None,
            "a checkpoint of step 812 was saved 60.0 s before the end; no step is lost",
            Level.INFO,
        ),
        (
            812,
            (800, 60.0),
            812,
            "the newest snapshot in memory is of step 812; no step is lost while a node of the job runs",
            Level.INFO,
        ),
        (812, (812, 1.0), 800, "a checkpoint of step 812 was saved 1.0 s before the end; no step is lost", Level.INFO),
        (812, None, 800, "the newest snapshot in memory is of step 800; 12 step(s) are lost", Level.WARNING),
        (812, None, None, "no checkpoint of them is known", Level.DEBUG),
        (None, None, None, "no checkpoint of them is known", Level.DEBUG),
    ],
)
def test_the_event_tells_what_was_saved_and_lost(
    step: int | None, checkpoint: tuple[int | None, float] | None, snapshot: int | None, text: str, level: Level
) -> None:
    found = time_to_save(3, PlannedStop(30.0, 5.0, step, checkpoint, snapshot))
    event = saved_event(found)
    assert (event.message, event.level) == (BEGIN + text, level)
    assert event.fields["lost_steps"] == found.lost_steps
