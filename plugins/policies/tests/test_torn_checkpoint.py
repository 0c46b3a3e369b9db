"""The failures that show a torn checkpoint, those that do not, and the fate of the checkpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from failures import failure, history, incident

from elastic_core.incidents import Action, Failure, Incident
from elastic_policies.exclusions import TornCheckpoint

MISSING = "FileNotFoundError: [Errno 2] No such file or directory: 'trainer_state.json'"


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """Return a checkpoint that was last changed five minutes ago."""
    path = tmp_path / "checkpoint-15"
    path.mkdir()
    (path / "model.safetensors").write_bytes(b"half of")
    before = time.time() - 300
    for each in (path / "model.safetensors", path):
        os.utime(each, (before, before))
    return path


def newest(torn: Path, **facts: Any) -> Incident:
    known = {"message": MISSING, "exception": "FileNotFoundError", "checkpoint": str(torn), "after": 2.0, "round": 3}
    return incident(**{**known, **facts})


def earlier(ago: float = 3.0, **facts: Any) -> Failure:
    return failure(ago, **{"exception": "FileNotFoundError", "checkpoint": "checkpoint-15", "after": 2.0, **facts})


def given(torn: Path, *, set_aside: bool = False) -> TornCheckpoint:
    return TornCheckpoint(2, str(torn.parent), set_aside)


def test_the_second_life_in_a_row_that_fails_to_load_it_ends_the_job_whatever_the_rank(torn: Path) -> None:
    verdict = given(torn).judge(newest(torn, rank=1), history(earlier(rank=0)))
    assert verdict is not None
    assert verdict.action is Action.GIVE_UP
    assert not verdict.requeue
    assert str(torn) in verdict.reason
    assert "--set_aside_torn_checkpoints" in verdict.reason
    assert torn.exists()


def test_it_is_set_aside_on_request_and_the_job_goes_on(torn: Path) -> None:
    verdict = given(torn, set_aside=True).judge(newest(torn), history(earlier()))
    assert verdict is not None
    assert verdict.action is Action.RESTART
    aside = torn.with_name("torn-checkpoint-15")
    assert verdict.reason.endswith(f"it was set aside as {aside}")
    assert not torn.exists()
    assert (aside / "model.safetensors").read_bytes() == b"half of"


def test_the_place_may_be_a_glob(torn: Path) -> None:
    beside = TornCheckpoint(2, str(torn.parent / "checkpoint-*"), set_aside=True)
    verdict = beside.judge(newest(torn), history(earlier()))
    assert verdict is not None
    assert not torn.exists()


def test_a_checkpoint_elsewhere_is_left_alone(torn: Path, tmp_path: Path) -> None:
    elsewhere = TornCheckpoint(2, str(tmp_path / "others" / "checkpoint-*"), set_aside=True)
    assert elsewhere.judge(newest(torn), history(earlier())) is None
    assert torn.exists()


def test_without_a_checkpoint_path_it_is_only_told(torn: Path) -> None:
    verdict = TornCheckpoint(2, "", set_aside=True).judge(newest(torn), history(earlier()))
    assert verdict is not None
    assert verdict.action is Action.RESTART
    assert torn.exists()


def test_a_checkpoint_that_this_host_does_not_have_is_only_told(torn: Path) -> None:
    verdict = given(torn).judge(
        newest(torn.with_name("checkpoint-20"), exception="EOFError"), history(earlier(checkpoint="checkpoint-20"))
    )
    assert verdict is not None
    assert verdict.action is Action.RESTART


HEALTHY: Mapping[str, tuple[Callable[[Path], Incident], tuple[Failure, ...], dict[str, bool]]] = {
    "the first failure": (newest, (), {}),
    "another checkpoint": (newest, (earlier(checkpoint="checkpoint-10"),), {}),
    "no checkpoint is named": (lambda torn: newest(torn, checkpoint=""), (earlier(),), {}),
    "this life made steps": (lambda torn: newest(torn, step=17), (earlier(),), {}),
    "the life before made steps": (newest, (earlier(step=15),), {}),
    "the life before saved a checkpoint": (newest, (earlier(new_checkpoint=True),), {}),
    "this life saved a checkpoint": (newest, (earlier(),), {"new_checkpoint": True}),
    "this life moved": (newest, (earlier(),), {"moved": True}),
    "the life before moved": (newest, (earlier(moved=True),), {}),
    "another failure came between": (newest, (earlier(), failure(1.0)), {}),
    "the file system lost a file": (
        lambda torn: newest(torn, message="OSError: [Errno 116] Stale file handle", exception="OSError"),
        (earlier(),),
        {},
    ),
    "too little memory to load it": (
        lambda torn: newest(torn, message="OutOfMemoryError: CUDA out of memory", exception="torch.OutOfMemoryError"),
        (earlier(exception="torch.OutOfMemoryError"),),
        {},
    ),
    "it is of another model": (
        lambda torn: newest(
            torn,
            message="RuntimeError: Error(s) in loading state_dict for Net: size mismatch for a.weight",
            exception="RuntimeError",
        ),
        (earlier(exception="RuntimeError"),),
        {},
    ),
    "no right to read it": (
        lambda torn: newest(torn, message="PermissionError: x", exception="PermissionError"),
        (earlier(exception="PermissionError"),),
        {},
    ),
    "it is a file of another folder": (
        lambda torn: newest(torn, checkpoint=f"{torn.parent}-base/checkpoint-15"),
        (earlier(),),
        {},
    ),
    "a peer was lost while it was loaded": (
        lambda torn: newest(torn, message="RuntimeError: x", exception="DistNetworkError", follows_peer=True),
        (earlier(),),
        {},
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_other_failures_touch_no_checkpoint(name: str, torn: Path) -> None:
    made, past, facts = HEALTHY[name]
    assert given(torn, set_aside=True).judge(made(torn), history(*past, **facts)) is None
    assert torn.exists()


def test_a_checkpoint_that_each_life_fails_to_save_is_not_torn(torn: Path) -> None:
    (torn / "model.safetensors").write_bytes(b"new")  # by the life that failed just now
    assert given(torn, set_aside=True).judge(newest(torn), history(earlier())) is None
    assert torn.exists()


def test_a_second_checkpoint_in_a_row_is_not_set_aside(torn: Path) -> None:
    """A program that can load none of its checkpoints any more keeps all of them but one."""
    past = (earlier(9.0, checkpoint="checkpoint-20"), earlier(6.0, checkpoint="checkpoint-20"), earlier())
    verdict = given(torn, set_aside=True).judge(newest(torn), history(*past))
    assert verdict is not None
    assert verdict.action is Action.GIVE_UP
    assert "checkpoint-20 could not be loaded either" in verdict.reason
    assert torn.exists()


def test_two_torn_checkpoints_with_training_between_are_both_set_aside(torn: Path) -> None:
    past = (earlier(90.0, checkpoint="checkpoint-10"), earlier(80.0, checkpoint="checkpoint-10"), failure(9.0, step=15))
    verdict = given(torn, set_aside=True).judge(newest(torn), history(*past, earlier()))
    assert verdict is not None
    assert verdict.action is Action.RESTART


def test_one_that_is_torn_again_gets_another_name(torn: Path) -> None:
    for name in ("torn-checkpoint-15", "torn-checkpoint-15-2"):
        torn.with_name(name).mkdir()
    verdict = given(torn, set_aside=True).judge(newest(torn), history(earlier()))
    assert verdict is not None
    assert verdict.reason.endswith("torn-checkpoint-15-3")
    assert (torn.with_name("torn-checkpoint-15-3") / "model.safetensors").exists()


def test_nothing_is_lost_where_it_cannot_be_renamed(torn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("not permitted")

    monkeypatch.setattr(os, "rename", refuse)
    verdict = given(torn, set_aside=True).judge(newest(torn), history(earlier()))
    assert verdict is not None
    assert verdict.action is Action.GIVE_UP
    assert "cannot be set aside" in verdict.reason
    assert (torn / "model.safetensors").exists()


def test_a_longer_row_is_wanted_where_the_user_says_so(torn: Path) -> None:
    patient = replace(given(torn), failures=3)
    assert patient.judge(newest(torn), history(earlier())) is None
    assert patient.judge(newest(torn), history(earlier(6.0), earlier())) is not None


def test_a_reader_that_says_in_words_that_a_file_is_cut_off_counts(torn: Path) -> None:
    cut = newest(torn, message="RuntimeError: PytorchStreamReader failed reading zip archive", exception="RuntimeError")
    verdict = given(torn).judge(cut, history(earlier(exception="RuntimeError")))
    assert verdict is not None
    assert verdict.action is Action.GIVE_UP
