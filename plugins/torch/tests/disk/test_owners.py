"""Whose checkpoints are loaded: who writes one can run code in the job that loads it."""

from __future__ import annotations

import os
import pickle
import re
import stat
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from elastic_torch.disk import Disk, catalog, dcp
from elastic_torch.disk.manifest import FileSum
from elastic_torch.disk.storage import LocalStorage


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A directory with the checkpoints of steps 1 and 2."""
    with Disk(tmp_path / "checkpoints") as disk:
        for step in (1, 2):
            disk.save({"weight": torch.ones(9) * step}, step).result()
    return tmp_path / "checkpoints"


def test_a_checkpoint_that_another_user_could_have_written_is_refused_by_name(
    two: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The one before is loaded."""
    newest = next(two.glob("run-*_step-000000002"))
    (newest / ".metadata").chmod(0o666)
    with Disk(two, read_only=True) as disk:
        found = disk.load()
        assert found is not None
        assert found.checkpoint.step == 1
    assert "every user can change" in caplog.text
    assert "ELASTIC_SHARED_CHECKPOINTS=1" in caplog.text
    with Disk(two, read_only=True, shared=True) as disk:
        found = disk.load()
        assert found is not None
        assert found.checkpoint.step == 2


@pytest.mark.parametrize(
    ("mode", "uid", "own", "fault"),
    [
        pytest.param(0o644, 0, None, "", id="of this user or root"),
        pytest.param(0o644, 12345, None, "belongs to another user (uid 12345)", id="of another user"),
        pytest.param(0o644, 12345, (0o644, 12345), "", id="as the file server shows all files"),
        pytest.param(0o666, 0, None, "every user can change", id="others may write"),
        pytest.param(0o666, 0, (0o666, 0), "", id="so it is with all files there"),
        pytest.param(0o666, 0, (0o644, 0), "every user can change", id="but not with this process's files"),
    ],
)
def test_whose_a_file_of_a_checkpoint_is(
    mode: int, uid: int, own: tuple[int, int] | None, fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stat_of(mode: int, uid: int) -> os.stat_result:
        return os.stat_result((stat.S_IFREG | mode, 0, 0, 1, uid, 0, 0, 0, 0, 0))

    def probe(self: LocalStorage) -> os.stat_result:
        if own is None:
            raise OSError
        return stat_of(*own)

    monkeypatch.setattr(LocalStorage, "_probe", probe)
    storage = LocalStorage(tmp_path)
    if not fault:
        storage._check_owner(stat_of(mode, uid), "x")
    else:
        with pytest.raises(PermissionError, match=re.escape(fault)):
            storage._check_owner(stat_of(mode, uid), "x")


def test_metadata_runs_nothing(two: Path) -> None:
    """It is read by an unpickler that finds only what torch's metadata consists of."""

    class Planted:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(two / "planted"),)

    for folder in two.glob("run-*"):
        data = pickle.dumps(Planted())
        (folder / ".metadata").write_bytes(data)
        storage = LocalStorage(two)
        manifest = catalog.read_manifest(storage, folder.name)
        planted = replace(manifest, files={**manifest.files, ".metadata": FileSum(len(data), sha256(data).hexdigest())})
        with pytest.raises(pickle.UnpicklingError, match=r"posix\.mkdir, which no metadata of torch has"):
            dcp.read(storage, folder.name, planted)
    assert not (two / "planted").exists()
