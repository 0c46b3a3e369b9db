"""The newest checkpoint of a script: in real directories, and by looks of which the test says what they find."""

from __future__ import annotations

import os
import queue
from contextlib import closing
from pathlib import Path

import pytest

from elastic_core.progress import Checkpoint
from elastic_progress.checkpoints import CheckpointFiles, NewestCheckpoint, SavedFile, find_files

PATIENCE = 30.0


def saved(step: int, at: float, size: int = 9) -> SavedFile:
    return SavedFile(at, f"out/checkpoint-{step}/model.pt", size)


def test_a_file_counts_once_two_looks_find_it_unchanged() -> None:
    newest = NewestCheckpoint()
    assert newest.look([], 10.0, 1010.0) is None
    assert newest.look([saved(1, 1012.0)], 15.0, 1015.0) is None
    assert newest.look([saved(1, 1018.0, 20)], 20.0, 1020.0) is None, "it grows"
    assert newest.look([saved(1, 1018.0, 20)], 25.0, 1025.0) == (
        Checkpoint(1, "out/checkpoint-1/model.pt"),
        7.0,
    )
    assert newest.look([saved(1, 1018.0, 20)], 30.0, 1030.0) is None, "it is known"


def test_the_newest_counts() -> None:
    newest = NewestCheckpoint()
    files = [saved(1, 1000.0), saved(2, 1005.0), saved(3, 1001.0)]
    newest.look(files, 10.0, 1010.0)
    assert newest.look(files, 15.0, 1015.0) == (Checkpoint(2, "out/checkpoint-2/model.pt"), 10.0)


@pytest.mark.parametrize(("changed_at", "age"), [(0.0, 10.0), (10**6, 0.0)])
def test_the_clock_of_the_disks_host_may_be_wrong(changed_at: float, age: float) -> None:
    newest = NewestCheckpoint()
    newest.look([], 10.0, 1010.0)
    newest.look([saved(1, changed_at)], 15.0, 1015.0)
    assert newest.look([saved(1, changed_at)], 20.0, 1020.0) == (Checkpoint(1, "out/checkpoint-1/model.pt"), age)


def test_a_file_with_a_step_in_its_path_comes_before_all_others() -> None:
    newest = NewestCheckpoint()
    files = [SavedFile(100.0, "/out/checkpoint-500/model.pt", 9), SavedFile(200.0, "/out/trainer_state.json", 9)]
    found = [newest.look(files, at, 300.0) for at in (0.0, 5.0)][-1]
    assert found is not None
    assert found[0].step == 500


def test_logs_and_metrics_are_no_checkpoints(tmp_path: Path) -> None:
    for name in ("model.pt", "events.out.tfevents.17.host.1.0", "train.log", "model.pt.tmp", "metrics.jsonl"):
        (tmp_path / name).write_text("x")
    assert [os.path.basename(file.path) for file in find_files(str(tmp_path))] == ["model.pt"]


def test_empty_files_do_not_count() -> None:
    newest = NewestCheckpoint()
    assert [newest.look([saved(1, 1.0, 0)], at, 1000.0) for at in (1.0, 2.0, 3.0)] == [None] * 3


def test_files_of_a_directory_a_glob_and_a_file(tmp_path: Path) -> None:
    for name in ("a/checkpoint-1/x.pt", "a/checkpoint-2/y.pt", "b/z.pt", "b/[z].pt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    os.mkfifo(tmp_path / "a" / "fifo")

    def found(place: str) -> set[str]:
        return {os.path.relpath(file.path, tmp_path) for file in find_files(f"{tmp_path}/{place}")}

    assert found("a") == {"a/checkpoint-1/x.pt", "a/checkpoint-2/y.pt"}
    assert found("a/checkpoint-*") == {"a/checkpoint-1/x.pt", "a/checkpoint-2/y.pt"}
    assert found("**/*.pt") == {"a/checkpoint-1/x.pt", "a/checkpoint-2/y.pt", "b/z.pt", "b/[z].pt"}
    assert found("b/z.pt") == {"b/z.pt"}
    assert found("b/[z].pt") == {"b/[z].pt"}, "a file of this very name"
    assert found("missing") == set()


def test_a_thread_finds_what_is_there_and_what_comes(tmp_path: Path) -> None:
    found: queue.Queue[Checkpoint] = queue.Queue()
    (tmp_path / "checkpoint-1").write_text("1")
    with closing(CheckpointFiles(str(tmp_path), lambda checkpoint, age: found.put(checkpoint), 0.01)):
        assert found.get(timeout=PATIENCE).step == 1
        (tmp_path / "checkpoint-2").write_text("2")
        os.utime(tmp_path / "checkpoint-2", (2e9, 2e9))
        assert found.get(timeout=PATIENCE).step == 2
