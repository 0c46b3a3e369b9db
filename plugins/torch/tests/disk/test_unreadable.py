"""Checkpoints that cannot be read: what a run does then, and that nothing of what others have saved is lost by it."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import fsspec
import pytest
import torch

from elastic_torch.disk import CheckpointError, CheckpointUnreadableError, Disk, Loaded, storage as storage_module
from elastic_torch.disk.disk import IGNORE
from elastic_torch.disk.loader import FoundCheckpoint, Loader
from elastic_torch.disk.manifest import NAME
from elastic_torch.disk.retry import Retry
from elastic_torch.disk.storage import LocalStorage

URL = "memory://bucket/checkpoints"
FIRST, SECOND, THIRD = ({"ELASTIC_RUN_UID": uid, "ELASTIC_ROUND": "1"} for uid in ("first", "second", "third"))
STEPS = (100, 200, 300)


def state(step: int) -> dict[str, Any]:
    return {"weight": torch.arange(300.0) * step}


def save(disk: Disk, *steps: int) -> None:
    for step in steps:
        disk.save(state(step), step).result()


def step_of(loaded: Loaded | None) -> int | None:
    if loaded is None:
        return None
    assert torch.equal(loaded.state["weight"], state(loaded.checkpoint.step)["weight"])
    return loaded.checkpoint.step


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with the checkpoints that a first run has left."""
    with Disk(tmp_path / "checkpoints", environ=FIRST) as disk:
        save(disk, *STEPS)
    return tmp_path / "checkpoints"


def folder(root: Path, step: int) -> Path:
    (found,) = root.glob(f"run-*_step-{step:09}")
    return found


def steps(root: Path) -> list[int]:
    return sorted(int(path.name[-9:]) for path in root.glob("run-*"))


def files(folder: Path) -> dict[str, str]:
    """The sums of all files in a folder, at any depth."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def saved(root: Path) -> dict[str, dict[str, str]]:
    """The files of each checkpoint, wherever in the directory it lies."""
    return {path.parent.name: files(path.parent) for path in root.rglob(NAME)}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.fixture
def flipped(root: Path) -> Path:
    """One bit in each is another: of the data, of what torch reads first, of the manifest."""
    for step, name in zip(STEPS, ("__0_0.distcp", ".metadata", NAME), strict=True):
        flip(folder(root, step) / name)
    return root


class Broken(io.RawIOBase):
    """A file that cannot be read."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def readable(self) -> bool:
        return True

    def seek(self, *_: Any) -> int:
        return 0

    def readinto(self, _: Any) -> int:
        raise OSError(self.code, os.strerror(self.code))


Reading = Callable[[Callable[[str], int | None]], None]


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    """Sets which files cannot be read: a function of the path that returns the number of the error."""
    real = LocalStorage.read

    def fail(code_of: Callable[[str], int | None]) -> None:
        def read(self: LocalStorage, path: str, *, checked: bool = False) -> IO[bytes]:
            code = code_of(path)
            return real(self, path, checked=checked) if code is None else Broken(code)  # type: ignore[return-value]

        monkeypatch.setattr(LocalStorage, "read", read)

    return fail


def checkpoints_fail(code: int) -> Callable[[str], int | None]:
    return lambda path: code if path.startswith("run-") else None


def test_where_none_can_be_read_a_run_does_not_begin_anew_and_everything_stays(flipped: Path) -> None:
    before = saved(flipped)
    with Disk(flipped, environ=SECOND, keep=1) as disk:
        with pytest.raises(CheckpointUnreadableError) as error:
            disk.load()
        for step, reason in zip(
            STEPS,
            ("the checksum of __0_0.distcp is wrong", "the checksum of .metadata is wrong", "its manifest"),
            strict=True,
        ):
            assert f"The checkpoint {folder(flipped, step)} is damaged: {reason}" in error.value.message
        assert IGNORE in str(error.value)
        assert saved(flipped) == before
        assert steps(flipped) == [*STEPS], "where they were"
        save(disk, 1, 2, 3, 4)  # a script that goes on all the same
    kept = saved(flipped)
    assert {name: kept[name] for name in before} == before, "to the byte"
    assert steps(flipped) == [4, *STEPS], "of its own it keeps one"


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_a_user_who_says_so_begins_anew_beside_them(flipped: Path, how: str) -> None:
    before = saved(flipped)
    environ = {**SECOND, IGNORE: "1"} if how == "variable" else SECOND
    with Disk(flipped, environ=environ, keep=2, ignore_unreadable=how == "argument") as disk:
        assert disk.newest() is None
        assert disk.load() is None
        save(disk, 1, 2, 3, 4)
    kept = saved(flipped)
    assert {name: kept[name] for name in before} == before, "to the byte"
    assert steps(flipped) == [3, 4]
    assert sorted(path.name for path in (flipped / storage_module.DAMAGED).iterdir()) == sorted(before)
    with Disk(flipped, environ=THIRD) as disk:
        assert step_of(disk.load()) == 4, "nobody has to say it again"


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_read_error_is_no_damage_and_nothing_is_touched(root: Path, reading: Reading, code: int) -> None:
    before = saved(root)
    reading(checkpoints_fail(code))
    text = f"step-000000300 could not be read: .*{os.strerror(code)}"
    with (
        Disk(root, environ=SECOND, keep=1, read_timeout=0) as disk,
        pytest.raises(CheckpointUnreadableError, match=text),
    ):
        disk.load()
    assert saved(root) == before
    assert steps(root) == [*STEPS]
    reading(lambda _: None)
    with Disk(root, environ=THIRD) as disk:
        assert step_of(disk.load()) == 300


@pytest.mark.parametrize("what", [NAME, "__0_0.distcp", ".metadata"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_read_error_that_passes_costs_nothing(
    root: Path, reading: Reading, caplog: pytest.LogCaptureFixture, code: int, what: str
) -> None:
    left = [3]

    def passing(path: str) -> int | None:
        if path.endswith(what) and "step-000000300" in path and left[0]:
            left[0] -= 1
            return code
        return None

    reading(passing)
    with Disk(root, environ=SECOND) as disk:
        loaded = disk.load()
    assert step_of(loaded) == 300
    assert loaded is not None
    assert loaded.damage == ()
    assert left == [0]
    assert "trying again for up to 60 seconds" in caplog.text
    assert steps(root) == [*STEPS]


def test_an_error_in_the_midst_of_a_file_is_read_over_at_that_byte(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, stumbled = LocalStorage.read, set[str]()

    class Stumbling(io.FileIO):
        def readinto(self, buffer: Any) -> int:
            if self.tell() >= 500 and str(self.name) not in stumbled:
                stumbled.add(str(self.name))
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().readinto(memoryview(buffer)[:500])

    def read(self: LocalStorage, path: str, *, checked: bool = False) -> IO[bytes]:
        return Stumbling(self.path(path)) if path.endswith(".distcp") else real(self, path, checked=checked)

    monkeypatch.setattr(LocalStorage, "read", read)
    with Disk(root, environ=SECOND) as disk:
        assert step_of(disk.load()) == 300
    assert len(stumbled) == 1


def test_an_unreadable_checkpoint_stays_for_good_while_an_older_one_is_taken(
    root: Path, reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    before = saved(root)
    reading(lambda path: errno.EIO if "step-000000300" in path else None)
    with Disk(root, environ=SECOND, keep=1, read_timeout=0) as disk:
        assert step_of(disk.load()) == 200
        assert "step-000000300 could not be read" in caplog.text
        assert "Taken instead: that of step 200" in caplog.text
    with Disk(root, environ={**SECOND, "ELASTIC_ROUND": "2"}, keep=1, read_timeout=0) as disk:
        save(disk, 210, 220, 230)  # it goes on from memory
    reading(lambda _: None)
    with Disk(root, environ=THIRD, keep=1) as disk:
        assert step_of(disk.load()) == 230
        save(disk, 240, 250)
    assert saved(root).items() >= before.items()
    assert steps(root) == [*STEPS[:2], 250, 300]


def test_once_it_can_be_read_again_it_is_the_newest_as_long_as_nothing_was_saved(root: Path, reading: Reading) -> None:
    reading(lambda path: errno.ESTALE if "step-000000300" in path else None)
    with Disk(root, environ=SECOND, read_timeout=0) as disk:
        assert step_of(disk.load()) == 200
    reading(lambda _: None)
    with Disk(root, environ=THIRD) as disk:
        assert step_of(disk.load()) == 300


def test_it_is_looked_at_once_more_before_an_older_one_is_taken(root: Path, reading: Reading) -> None:
    left = [1]

    def once(path: str) -> int | None:
        if path.endswith("000300/__0_0.distcp") and left[0]:
            left[0] -= 1
            return errno.EIO
        return None

    reading(once)
    with Disk(root, environ=SECOND, read_timeout=0) as disk:
        assert step_of(disk.load()) == 300


def test_a_damaged_one_is_set_aside_and_the_one_before_is_gone_on_from(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flip(folder(root, 300) / "__0_0.distcp")
    before = saved(root)
    name = folder(root, 300).name
    with Disk(root, environ=SECOND, keep=2) as disk:
        assert step_of(disk.load()) == 200
        assert f"is kept as {root}/damaged/{name}. Nothing removes it." in caplog.text
        assert os.readlink(root / "latest") == folder(root, 200).name
        save(disk, 210, 220, 230)
    assert steps(root) == [220, 230], "the others of its lineage are old"
    assert saved(root / "damaged") == {name: before[name]}
    flip(folder(root, 230) / ".metadata")
    with Disk(root, environ=THIRD, keep=2) as disk:
        assert step_of(disk.load()) == 220
    assert len(saved(root / "damaged")) == 2


class Poison:
    """An object that leaves a file behind when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.trace,))


@pytest.mark.parametrize("when", ["before", "between the check and the load"])
def test_a_metadata_that_is_not_what_was_saved_is_never_unpickled(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    poison, trace = pickle.dumps(Poison(tmp_path / "unpickled")), tmp_path / "unpickled"
    pickle.loads(poison)
    assert trace.exists(), "else this would show nothing"
    trace.unlink()
    if when == "before":
        for step in STEPS:
            (folder(root, step) / ".metadata").write_bytes(poison)
        error = "the checksum of .metadata is wrong|.metadata has [0-9]+ bytes"
    else:
        real = Loader.fetch

        def fetch(self: Loader, found: FoundCheckpoint) -> Any:
            there = real(self, found)
            (folder(root, STEPS[-1]) / ".metadata").write_bytes(poison)
            return there

        monkeypatch.setattr(Loader, "fetch", fetch)
        error = ".metadata is not what was verified a moment ago"
    with Disk(root, environ=SECOND, read_timeout=0) as disk, pytest.raises(CheckpointError, match=error):
        disk.load()
    assert not trace.exists()
    assert len(steps(root)) == len(STEPS)


def test_two_damaged_ones_of_one_name_are_both_kept(root: Path) -> None:
    storage = LocalStorage(root)
    name = folder(root, 300).name
    shutil.copytree(root / name, root / "copy")
    assert storage.set_aside(name) == f"{root}/damaged/{name}"
    (root / "copy").rename(root / name)
    assert storage.set_aside(name) != f"{root}/damaged/{name}"
    assert len(list((root / "damaged").iterdir())) == 2


def test_where_nothing_can_be_moved_a_damaged_one_stays_where_it_is(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    flip(folder(root, 300) / "__0_0.distcp")
    before = saved(root)
    with Disk(root, environ=SECOND, keep=1) as disk:
        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "set_aside", refuse)
            assert step_of(disk.load()) == 200
        assert "stays where it is" in caplog.text
        save(disk, 210, 220)
    assert saved(root).items() >= before.items()
    assert steps(root) == [*STEPS[:2], 220, 300]


def test_a_half_deleted_one_is_set_aside_too(root: Path) -> None:
    (folder(root, 300) / NAME).unlink()
    (folder(root, 200) / ".metadata").unlink()
    with Disk(root, environ=SECOND) as disk:
        assert step_of(disk.load()) == 100
    assert steps(root) == [100]
    assert len(list((root / "damaged").iterdir())) == 2


def test_a_reader_moves_nothing(flipped: Path) -> None:
    before = files(flipped)
    with Disk(flipped, read_only=True) as disk:
        with pytest.raises(CheckpointUnreadableError):
            disk.newest()
        with pytest.raises(CheckpointUnreadableError):
            disk.load()
    with Disk(flipped, read_only=True, ignore_unreadable=True) as disk:
        assert disk.load() is None
    assert files(flipped) == before


def test_a_checkpoint_of_another_release_is_not_damaged(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr("elastic_torch.disk.manifest.FORMAT", 99)
        with Disk(root, environ=SECOND) as disk:
            save(disk, 1)
    name = folder(root, 1).name
    with Disk(root, environ=THIRD, keep=1) as disk:
        assert step_of(disk.load()) == 300
        save(disk, 2, 3)
    assert (root / name).exists()


def test_a_directory_that_cannot_be_listed_is_not_an_empty_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with Disk(root, environ=SECOND, read_timeout=0) as disk:
        with monkeypatch.context() as patch:
            patch.setattr(os, "listdir", refuse)
            with pytest.raises(CheckpointUnreadableError, match=r"cannot be listed: .*Input/output error"):
                disk.load()
        root.rename(root.with_name("away"))
        with pytest.raises(CheckpointUnreadableError, match=r"cannot be listed: .*No such file"):
            disk.load()


def test_a_latest_that_points_nowhere_says_that_something_was_there(root: Path) -> None:
    for step in STEPS:
        shutil.rmtree(folder(root, step))
    with (
        Disk(root, environ=SECOND) as disk,
        pytest.raises(CheckpointUnreadableError, match="latest names run-0001_round-00001_step-000000300, which"),
    ):
        disk.load()
    with Disk(root, environ=THIRD, ignore_unreadable=True) as disk:
        assert disk.load() is None
        save(disk, 1)


def test_a_run_that_loads_nothing_removes_nothing_of_another(root: Path) -> None:
    before = saved(root)
    for environ in (SECOND, THIRD):
        with Disk(root, environ=environ, keep=2) as disk:
            save(disk, 1, 2, 3)
    assert saved(root).items() >= before.items()
    assert steps(root) == [2, 2, 3, 3, *STEPS]


def test_runs_that_go_on_from_each_other_keep_so_many_together(root: Path) -> None:
    for run in range(4):
        for round_ in (1, 2, 3):
            with Disk(root, environ={"ELASTIC_RUN_UID": f"run{run}", "ELASTIC_ROUND": str(round_)}, keep=2) as disk:
                if round_ == 1:  # the later ones go on from memory
                    assert step_of(disk.load()) == 300 + run * 20
                if round_ == 3:  # and the first ones do not live to save anything
                    save(disk, 310 + run * 20, 320 + run * 20)
    assert len(steps(root)) == 2


@pytest.fixture
def store() -> Iterator[fsspec.AbstractFileSystem]:
    store = fsspec.filesystem("memory")
    with Disk(URL, environ=FIRST) as disk:
        save(disk, *STEPS)
    yield store
    store.store.clear()
    store.pseudo_dirs[:] = [""]


def contents(store: fsspec.AbstractFileSystem) -> dict[str, bytes]:
    return {path: store.cat(path) for path in store.find("/bucket") if "/run-" in path and "/.claims/" not in path}


def test_at_a_url_everything_stays_where_none_can_be_read(store: fsspec.AbstractFileSystem) -> None:
    for path in store.glob("/bucket/checkpoints/run-*/__0_0.distcp"):
        data = bytearray(store.cat(path))
        data[99] ^= 4
        store.pipe(path, bytes(data))
    before = contents(store)
    with Disk(URL, environ=SECOND, keep=1) as disk, pytest.raises(CheckpointUnreadableError, match="none of them"):
        disk.load()
    with Disk(URL, environ=THIRD, keep=1, ignore_unreadable=True) as disk:
        assert disk.load() is None
        save(disk, 1, 2, 3)
        assert step_of(disk.load()) == 3
    with Disk(URL, environ={"ELASTIC_RUN_UID": "fourth"}, keep=1) as disk:
        assert step_of(disk.load()) == 3
        save(disk, 4, 5)
    after = contents(store)
    assert after.items() >= before.items()
    assert len([path for path in after if path.endswith(NAME)]) == len(STEPS) + 1


def test_at_a_url_an_error_of_the_stores_own_kind_is_a_read_error(
    store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowDownError(Exception):
        pass

    before, real, left = contents(store), store.open, [2]

    def busy(path: str, mode: str = "rb", **options: Any) -> Any:
        if "distcp" in path and mode == "rb" and left[0]:
            left[0] -= 1
            raise SlowDownError("503")
        return real(path, mode, **options)

    monkeypatch.setattr(type(store), "open", lambda self, *args, **options: busy(*args, **options))
    with Disk(URL, environ=SECOND) as disk:
        assert step_of(disk.load()) == 300
    left[0] = 10**6
    with Disk(URL, environ=THIRD, read_timeout=0) as disk, pytest.raises(CheckpointUnreadableError, match="SlowDown"):
        disk.load()
    assert contents(store) == before


def test_a_retry_ends_after_its_time_and_begins_anew_after_an_error_has_passed() -> None:
    now, pauses = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    retry = Retry(10, lambda: now[0], sleep)
    left = [5]

    def flaky() -> str:
        if left[0] == 0:
            return "read"
        left[0] -= 1
        raise OSError(errno.EIO, "it stutters")

    assert retry(flaky) == "read"
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8]
    for others in (False, True):  # the time is one for all that fails
        left[0], before = 10**6, now[0]
        with pytest.raises(OSError, match="it stutters"):
            retry(flaky)
        assert now[0] - before == pytest.approx(0 if others else 10)
    for lasting in (FileNotFoundError(2, "gone"), PermissionError(13, "no"), OSError(errno.ELOOP, "round")):
        now[0], left[0] = 0.0, 0

        def fail(error: OSError = lasting) -> None:
            left[0] += 1
            raise error

        with pytest.raises(OSError, match=lasting.strerror):
            Retry(10, lambda: now[0], sleep)(fail)
        assert left == [1], lasting
