"""What scripts report of their progress, and progress in words."""

from __future__ import annotations

import math

import pytest

from elastic_core.progress import Progress, check_report


@pytest.mark.parametrize(
    ("fields", "progress"),
    [
        ({"step": 3}, Progress(step=3)),
        ({"step": 3, "loss": None, "type": "progress"}, Progress(step=3)),
        ({"loss": math.inf, "epoch": 1}, Progress(loss=math.inf, epoch=1.0)),
        ({"samples": 0}, Progress(samples=0)),
    ],
)
def test_reports_are_read(fields: dict[str, object], progress: Progress) -> None:
    assert check_report(fields) == progress


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "reports none of step, loss, samples, epoch"),
        ({"step": "3"}, "its step is no whole number"),
        ({"step": 3.0}, "its step is no whole number"),
        ({"step": True}, "its step is no whole number"),
        ({"step": -1}, "its step is out of range"),
        ({"samples": 2**53}, "its samples is out of range"),
        ({"loss": [1]}, "its loss is no number"),
        ({"loss": 10**400}, "its loss is out of range"),
        ({"epoch": math.nan}, "its epoch is out of range"),
    ],
)
def test_reports_that_are_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_report(fields)


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (Progress(), ""),
        (Progress(step=3, loss=0.25), "step 3, loss 0.25"),
        (Progress(samples=9, epoch=1.5), "samples 9, epoch 1.5"),
    ],
)
def test_progress_in_words(progress: Progress, words: str) -> None:
    assert progress.describe() == words
