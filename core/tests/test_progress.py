"""Progress of unchanged scripts: their output is read, in jobs of real agents over two nodes."""

from __future__ import annotations

import math

import pytest

from elastic_core.progress import Progress, check_report, step_of_path


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


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("out/checkpoint-500", 500),
        ("out/checkpoint-500/model.safetensors", 500),
        ("lightning_logs/version_3/checkpoints/epoch=3-step=1200.ckpt", 1200),
        ("ckpt/iter_0000845/mp_rank_00/model_optim_rng.pt", 845),
        ("ds/global_step500/mp_rank_00_model_states.pt", 500),
        ("outputs/checkpoint/step-1/__0_0.distcp", 1),
        ("last.pt", None),
        ("run-17/model.pt", None),
        (f"step-{2**53}.pt", None),
        (f"step-{'9' * 5000}.pt", None),
    ],
)
def test_the_step_in_the_name_of_a_checkpoint(path: str, step: int | None) -> None:
    assert step_of_path(path) == step
