"""Checkpoints at a URL, where nothing is renamed: fsspec's own store in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import fsspec
import pytest
import torch

from elastic_core.errors import UsageError
from elastic_torch.disk import CheckpointRefusedError, CheckpointSaveError, Disk, saver
from elastic_torch.disk.catalog import Damage
from elastic_torch.disk.storage import UrlStorage

URL = "memory://bucket/checkpoints"


def place(round: int, run: str = "abc") -> dict[str, str]:
    return {"ELASTIC_RUN_UID": run, "ELASTIC_ROUND": str(round)}


@pytest.fixture(autouse=True)
def store() -> Iterator[fsspec.AbstractFileSystem]:
    store = fsspec.filesystem("memory")
    yield store
    store.store.clear()
    store.pseudo_dirs[:] = [""]


def steps(disk: Disk) -> list[int]:
    return sorted(int(name.split("_step-")[1][:9]) for name in disk._storage.folders() if name.startswith("run"))


def test_a_saved_state_is_loaded_and_the_last_checkpoints_are_kept() -> None:
    with Disk(URL, keep=2) as disk:
        for step in range(1, 5):
            disk.save({"weight": torch.ones(300) * step}, step)
        disk.wait()
        loaded = disk.load()
        assert steps(disk) == [3, 4]
    assert loaded is not None
    assert loaded.checkpoint.where.startswith(f"{URL}/run-0001_round-00000_step-000000004-")
    assert torch.equal(loaded.state["weight"], torch.ones(300) * 4)


def test_without_its_manifest_it_is_no_checkpoint(store: fsspec.AbstractFileSystem) -> None:
    with Disk(URL, environ=place(1)) as disk:
        disk.save({"step": 1}, 1)
        disk.save({"step": 2}, 2)
        last = disk.wait()
        assert last is not None
        store.rm(f"/bucket/checkpoints/{last.folder}/manifest.json")
        newest = disk.newest()
        assert newest is not None
        assert newest.step == 1


def test_the_next_round_removes_the_files_of_a_killed_save(store: fsspec.AbstractFileSystem) -> None:
    with Disk(URL, environ=place(1)) as disk:
        disk.save({"step": 1}, 1)
        killed = disk.save({"step": 2}, 2).result()
        store.rm(f"/bucket/checkpoints/{killed.folder}/manifest.json")
        disk.save({"step": 3}, 3).result()
        assert killed.folder in disk._storage.names(""), "of this round: somebody may be writing it"
    with Disk(URL, environ=place(2)) as disk:
        disk.save({"step": 4}, 4).result()
        assert killed.folder not in disk._storage.names("")
        assert steps(disk) == [1, 3, 4]


def test_damage_is_found(store: fsspec.AbstractFileSystem) -> None:
    with Disk(URL) as disk:
        disk.save({"weight": torch.ones(9)}, 1)
        disk.save({"weight": torch.ones(9)}, 2)
        last = disk.wait()
        assert last is not None
        path = f"/bucket/checkpoints/{last.folder}/__0_0.distcp"
        data = bytearray(store.cat(path))
        data[99] ^= 4
        store.pipe(path, bytes(data))
        loaded = disk.load()
    assert loaded is not None
    assert loaded.checkpoint.step == 1
    assert last.folder in loaded.damage[0].where


def test_stragglers_are_refused() -> None:
    old = Disk(URL, environ=place(1))
    saver.owners.clear()  # as in a process of its own
    with Disk(URL, environ=place(2)) as new:
        with pytest.raises(CheckpointRefusedError, match="a later round, 2"):
            old.save({"step": 1}, 1).result()
        new.save({"step": 1}, 1).result()
    old.close()


def test_of_two_that_save_one_step_all_take_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have passed every check before either is done."""
    one = Disk(URL, environ=place(1))
    saver.owners.clear()  # as in a process of its own
    two = Disk(URL, environ=place(1))
    real, nested = UrlStorage.publish, False

    def publish(self: UrlStorage, staging: str, name: str) -> str:
        nonlocal nested
        if not nested:
            nested = True
            monkeypatch.setattr("elastic_torch.disk.saver.Saver._check_free", lambda *_: None)
            outcomes.append(two.save({"step": 1, "who": "two"}, 1).exception())
        return real(self, staging, name)

    outcomes: list[BaseException | None] = []
    monkeypatch.setattr(UrlStorage, "publish", publish)
    outcomes.append(one.save({"step": 1, "who": "one"}, 1).exception())
    refused = [error for error in outcomes if error is not None]
    assert len(refused) == 1
    assert isinstance(refused[0], CheckpointRefusedError)
    winner = "two" if outcomes[0] is None else "one"
    for disk in (one, two):
        loaded = disk.load()
        assert loaded is not None
        assert loaded.state["who"] == winner
        disk.close()


def test_an_upload_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with Disk(URL) as disk:
        disk.save({"weight": torch.ones(9)}, 1).result()
        with monkeypatch.context() as patch:
            patch.setattr("elastic_torch.disk.catalog.check", lambda *_: Damage("s3://a/b", "it was lost on the way"))
            with pytest.raises(CheckpointSaveError, match="it was lost on the way"):
                disk.save({"weight": torch.ones(9)}, 2).result()
        assert steps(disk) == [1]
        assert len(disk._storage.names("")) == 2, "the checkpoint and the claims"


def test_without_fsspec_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match="need fsspec") as error:
        Disk("s3://bucket/checkpoints")
    assert "pip install fsspec" in str(error.value)


def test_a_url_of_no_known_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="'nowhere://x' is no place for checkpoints"):
        Disk("nowhere://x")
