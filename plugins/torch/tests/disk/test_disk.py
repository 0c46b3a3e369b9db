"""One process: saving, loading, damage, stragglers, other jobs, a full disk."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load as torch_load

from elastic_core.errors import UsageError
from elastic_torch.disk import (
    CheckpointLoadError,
    CheckpointRefusedError,
    CheckpointSaveError,
    Disk,
    fence,
    saver,
)
from elastic_torch.disk.collective import PeerFailedError
from elastic_torch.disk.fence import Identity
from elastic_torch.disk.storage import LocalStorage, open_storage

pytestmark = pytest.mark.timeout(600)


def state(step: int) -> dict[str, Any]:
    return {"weight": torch.arange(600.0) * step, "deep": {"step": step, "list": [1, torch.ones(3) * step]}}


def whole(found: dict[str, Any], step: int) -> bool:
    return (
        torch.equal(found["weight"], torch.arange(600.0) * step)
        and found["deep"]["step"] == step
        and torch.equal(found["deep"]["list"][1], torch.ones(3) * step)
    )


def place(run: str = "abc", round: int = 1) -> dict[str, str]:
    return {"ELASTIC_RUN_UID": run, "ELASTIC_ROUND": str(round), "TORCHELASTIC_RUN_ID": "job42"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def two(root: Path) -> Path:
    """A directory with the checkpoints of steps 1 and 2."""
    with Disk(root, environ=place()) as disk:
        disk.save(state(1), 1)
        disk.save(state(2), 2)
        disk.wait()
    return root


def folder(root: Path, step: int) -> Path:
    (found,) = root.glob(f"run-*_step-{step:09}")
    return found


def in_another_process() -> None:
    """Play a process of its own from here on."""
    saver.owners.clear()


def names(root: Path) -> list[int]:
    return sorted(int(path.name[-9:]) for path in root.glob("run-*"))


def test_a_saved_state_is_loaded(two: Path) -> None:
    with Disk(two, read_only=True) as disk:
        loaded = disk.load()
        assert loaded is not None
        assert (loaded.checkpoint.step, loaded.checkpoint.round, loaded.checkpoint.run_uid) == (2, 1, "abc")
        assert whole(loaded.state, 2)
        into = state(0)
        weight = into["weight"]
        disk.load(into)
        assert whole(into, 2)
        assert into["weight"] is weight, "filled in place"
    assert os.readlink(two / "latest") == folder(two, 2).name


def test_an_empty_directory_has_no_checkpoint(root: Path) -> None:
    with Disk(root) as disk:
        assert (disk.newest(), disk.load(), disk.wait()) == (None, None, None)


def test_torch_alone_can_load_the_latest(two: Path) -> None:
    into = {"weight": torch.zeros(600)}
    with pytest.warns(UserWarning, match="single process"):
        torch_load(into, checkpoint_id=two / "latest")
    assert torch.equal(into["weight"], state(2)["weight"])


def test_modules_are_asked_for_their_state_and_given_it(root: Path) -> None:
    saved, fresh = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    with Disk(root) as disk:
        disk.save({"model": saved}, 1)
        disk.load({"model": fresh})
    assert torch.equal(saved.weight, fresh.weight)


def test_training_may_change_the_state_at_once(root: Path) -> None:
    live = state(1)
    with Disk(root) as disk:
        for step in range(1, 6):  # more than there are snapshots: their memory is used again
            live["weight"].copy_(state(step)["weight"])
            live["deep"]["step"] = step
            live["deep"]["list"][1].fill_(step)
            future = disk.save(live, step)
            live["weight"].zero_()
            live["deep"]["list"][1].zero_()
            assert future.result().step == step
        loaded = disk.load()
    assert loaded is not None
    assert whole(loaded.state, 5)


def test_save_returns_while_the_disk_is_still_busy(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, real = threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        assert go_on.wait(60)
        real(descriptor)

    with Disk(root) as disk:
        monkeypatch.setattr(os, "fsync", slow)
        futures = [disk.save(state(1), 1), disk.save(state(2), 2)]
        assert not any(future.done() for future in futures)
        go_on.set()
        assert [future.result().step for future in futures] == [1, 2]


def test_the_last_ones_are_kept(root: Path) -> None:
    with Disk(root, keep=2) as disk:
        for step in range(1, 5):
            disk.save(state(step), step)
        disk.wait()
    assert names(root) == [3, 4]


def test_a_damaged_one_does_not_push_out_a_good_one(two: Path) -> None:
    (folder(two, 2) / "__0_0.distcp").unlink()
    with Disk(two, environ=place(round=2), keep=2) as disk:
        disk.save(state(3), 3).result()
    assert names(two) == [1, 2, 3]


FILES = ["__0_0.distcp", ".metadata", "manifest.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["flip", "truncate", "empty", "remove", "lengthen"])
def test_damage_is_found_and_named_and_the_one_before_is_loaded(
    two: Path, name: str, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder(two, 2) / name
    data = path.read_bytes()
    match harm:
        case "flip":
            path.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 16]) + data[len(data) // 2 + 1 :])
        case "truncate":
            path.write_bytes(data[:-1])
        case "empty":
            path.write_bytes(b"")
        case "remove":
            path.unlink()
        case "lengthen":
            path.write_bytes(data + b" x")
    with Disk(two, read_only=True) as disk:
        loaded = disk.load()
        newest = disk.newest()
    assert loaded is not None
    assert newest is not None
    assert (loaded.checkpoint.step, newest.step) == (1, 1)
    assert whole(loaded.state, 1)
    assert len(loaded.damage) == 1
    assert str(folder(two, 2)) in caplog.text
    assert ("manifest" if name == "manifest.json" else name) in loaded.damage[0].reason
    assert "Taken instead: that of step 1" in caplog.text


def test_every_single_byte_counts(two: Path) -> None:
    path = folder(two, 2) / "manifest.json"
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with Disk(two, read_only=True) as disk:
            newest = disk.newest()
        assert newest is not None
        assert newest.step == 1, f"byte {at}"


def test_a_half_written_folder_is_no_checkpoint_and_the_next_round_removes_it(two: Path) -> None:
    half = two / ".saving-run-0001_round-00001_step-000000003-abcd"
    folder(two, 2).rename(half)
    with Disk(two, environ=place(round=2)) as disk:
        newest = disk.newest()
        assert newest is not None
        assert newest.step == 1
        disk.save(state(3), 3).result()
    assert not half.exists()


def test_another_models_checkpoint_is_refused_in_words(two: Path) -> None:
    with (
        Disk(two, read_only=True) as disk,
        pytest.raises(CheckpointLoadError, match="is intact but could not be loaded"),
    ):
        disk.load({"other": torch.zeros(2)})


def test_a_straggler_of_an_older_round_can_neither_begin_nor_publish(root: Path) -> None:
    old = Disk(root, environ=place(round=1))
    old.save(state(1), 1).result()
    in_another_process()
    new = Disk(root, environ=place(round=2))
    with pytest.raises(
        CheckpointRefusedError, match=r"a later round, 2, of job 'job42' on .*, pid .* has taken over; this is round 1"
    ):
        old.save(state(5), 5).result()
    in_another_process()
    with pytest.raises(CheckpointRefusedError, match="a later round"):
        Disk(root, environ=place(round=1))
    new.save(state(2), 2).result()
    assert os.readlink(root / "latest").endswith("round-00002_step-000000002")
    assert names(root) == [1, 2]
    old.close()
    new.close()


@pytest.mark.parametrize("swept", [True, False])
def test_a_straggler_that_has_passed_every_check_moves_nothing_back(
    root: Path, monkeypatch: pytest.MonkeyPatch, swept: bool
) -> None:
    """It is stopped between its last look and its rename, for as long as a whole round takes."""
    old = Disk(root, environ=place(round=1))
    new: Disk | None = None
    real = os.rename

    def late(source: Any, target: Any, **named: Any) -> None:
        nonlocal new
        if new is None and "round-00001" in str(target):
            in_another_process()
            new = Disk(root, environ=place(round=2))
            # The straggler is inside the lock; this one has to do without it, as after its patience is at an end.
            monkeypatch.setattr("elastic_torch.disk.storage._IN_PROCESS", threading.Lock())
            monkeypatch.setattr("elastic_torch.disk.storage._lock", lambda *_, **__: False)
            if not swept:
                monkeypatch.setattr("elastic_torch.disk.catalog.sweep", lambda *_: None)
            new.save(state(2), 2).result()
            monkeypatch.undo()
        real(source, target, **named)

    monkeypatch.setattr(os, "rename", late)
    future = old.save(state(9), 9)
    if swept:
        with pytest.raises(CheckpointRefusedError, match="a later round, 2,"):
            future.result()
    else:
        future.result()
    assert new is not None
    assert names(root) == ([2] if swept else [2, 9])
    newest = new.newest()
    assert newest is not None
    assert (newest.round, newest.step) == (2, 2)
    if swept:  # without the lock `latest` was left alone; the straggler might have had it
        assert not (root / "latest").exists()
    else:
        assert os.readlink(root / "latest") == newest.folder
    new.save(state(3), 3).result()
    assert os.readlink(root / "latest").endswith("round-00002_step-000000003")
    old.close()
    new.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one is given up, and not closed
@pytest.mark.parametrize("run", ["abc", "another"])
def test_two_of_one_process_do_not_save_in_one_directory(root: Path, tmp_path: Path, run: str) -> None:
    first = Disk(root, environ=place())
    by_another_way = tmp_path / "link"
    by_another_way.symlink_to(root)
    with pytest.raises(CheckpointRefusedError, match=f"Another Disk of this process saves in {by_another_way} already"):
        Disk(by_another_way, environ=place(run))
    with Disk(root, read_only=True), Disk(tmp_path / "other", environ=place()):
        first.save(state(1), 1).result()
    first.close()
    with Disk(root, environ=place(run)) as second:
        assert second.save(state(2), 2).result().step == 2
    given_up = Disk(root, environ=place(run))
    given_up.mine = given_up  # type: ignore[attr-defined]  # garbage that only the collector finds
    del given_up
    Disk(root, environ=place(run)).close()


def test_of_the_claims_of_a_long_run_few_are_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Disk(root, environ=place("first", 7)) as disk:
        disk.save(state(1), 1).result()
    storage = open_storage(root)
    for round_ in range(1, 60):
        fence.claim(storage, 2, Identity("second", round_, "somebody"))
    (root / ".claims" / "run-0002_round-00059.json").write_text("damaged")
    read, real = list[str](), LocalStorage.read

    def counted(self: LocalStorage, path: str, **named: Any) -> Any:
        read.append(path)
        return real(self, path, **named)

    monkeypatch.setattr(LocalStorage, "read", counted)
    with Disk(root, environ=place("second", 60)) as disk:
        assert disk.run == 2, "the same run goes on"
        assert [path for path in read if ".claims" in path] == [
            ".claims/run-0002_round-00059.json",
            ".claims/run-0002_round-00058.json",
            ".claims/run-0001_round-00007.json",
            ".claims/run-0002.json",  # that it has the number
        ]
        read.clear()
        disk.save(state(2), 2).result()
        assert not [path for path in read if ".claims" in path]
        fence.claim(storage, 2, Identity("second", 61, "somebody else"))
        with pytest.raises(CheckpointRefusedError, match="a later round, 61, of somebody else has taken over"):
            disk.save(state(3), 3).result()


def test_rounds_count_more_than_steps(root: Path) -> None:
    with Disk(root, environ=place(round=1)) as disk:
        disk.save(state(100), 100).result()
    with Disk(root, environ=place(round=2)) as disk:
        disk.save(state(90), 90).result()
        newest = disk.newest()
    assert newest is not None
    assert newest.step == 90
    assert os.readlink(root / "latest").endswith("step-000000090")


JOB = """
    import os, sys, torch
    from elastic_torch.disk import CheckpointError, Disk
    root, uid = sys.argv[1:]
    try:
        disk = Disk(root, environ={"ELASTIC_RUN_UID": uid, "ELASTIC_ROUND": "1", "TORCHELASTIC_RUN_ID": uid})
        disk.save({"weight": torch.ones(10)}, 1).result()
        print("saved", flush=True)
        sys.stdin.read()
    except CheckpointError as error:
        print("refused", " ".join(str(error).split()), flush=True)
"""


def job(root: Path, uid: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(JOB), str(root), uid]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def jobs(root: Path) -> Iterator[list[subprocess.Popen[str]]]:
    both = [job(root, "one"), job(root, "two")]
    yield both
    for each in both:
        each.kill()
        each.communicate()


def test_of_two_jobs_one_saves_and_the_other_is_refused_by_name(
    root: Path, jobs: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [str(each.stdout and each.stdout.readline()) for each in jobs]
    assert sorted(line.split()[0] for line in said) == ["refused", "saved"], said
    winner = ("one", "two")[said.index("saved\n")]
    refused = next(line for line in said if line.startswith("refused"))
    assert f"of job '{winner}' on " in refused, "whether it came later or at the same moment"
    assert names(root) == [1]
    # And a third one as well, until the winner is killed.
    monkeypatch.setattr("elastic_torch.disk.storage.PATIENCE", 0.1)
    with pytest.raises(CheckpointRefusedError, match=f"{winner} of job '{winner}' .* it is alive"):
        Disk(root, environ=place("three"))
    jobs[said.index("saved\n")].kill()
    jobs[said.index("saved\n")].wait()
    with Disk(root, environ=place("three")) as disk:
        assert disk.run == 2
        disk.save(state(1), 1).result()
    assert len(names(root)) == 2


FULL = """
    import json, logging, sys, torch
    from elastic_torch.disk import CheckpointSaveError, Disk
    with Disk(sys.argv[1], keep=1) as disk:
        disk.save({"weight": torch.ones(20_000)}, 1).result()
        try:
            disk.save({"weight": torch.ones(60_000)}, 2).result()
        except CheckpointSaveError as error:
            print(json.dumps(str(error)))
        print(json.dumps(disk.load().checkpoint.step))
        disk.save({"weight": torch.ones(20_000) * 3}, 3).result()
        print(json.dumps(disk.load().checkpoint.step))
"""


def test_on_a_full_disk_the_old_one_stays_and_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    mount = f"mount -t tmpfs -o size=256k small {tmp_path}/small"
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    command = [*namespace, "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", textwrap.dedent(FULL)]
    done = subprocess.run([*command, f"{tmp_path}/small"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    error, after, later = map(json.loads, done.stdout.splitlines())
    assert error.startswith(
        f"The checkpoint of step 2 was not saved in {tmp_path}/small: rank 0: [Errno 28] No space left"
    )
    assert "The newest is still that of step 1." in error
    assert "Free some space" in error
    assert (after, later) == (1, 3)


def test_failures_are_logged_though_nobody_asks(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> int:
        raise OSError(5, os.strerror(5))

    with Disk(root) as disk:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", broken)
            disk.save(state(1), 1)
            disk._writer.settle()
        disk.save(state(2), 2).result()
    assert "The checkpoint of step 1 was not saved" in caplog.text
    assert "There is none yet." in caplog.text


def test_a_directory_that_is_removed_in_between_is_said_to_be_gone_and_used_again_when_it_is_back(two: Path) -> None:
    with Disk(two, environ=place()) as disk:
        shutil.rmtree(two)
        future = disk.save(state(3), 3)
        with pytest.raises(
            CheckpointSaveError, match=r"step 3 was not saved .*There is none yet\.\nIf the directory is gone"
        ):
            future.result()
        assert not two.exists(), "what stands there may be a disk that is not mounted any more"
        two.mkdir()
        assert disk.save(state(4), 4).result().step == 4
        with pytest.raises(CheckpointRefusedError, match="Another Disk of this process"):
            Disk(two, environ=place())


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EDQUOT, "Free some space, or keep fewer than 2 checkpoints."),
        (errno.EFBIG, "Raise the limit on the size of files (ulimit -f)."),
        (errno.EROFS, "Have the disk made writable again: systems turn it read-only after an error."),
        (errno.EACCES, "Give this user the right to write there."),
        (errno.EIO, ""),
    ],
)
def test_an_error_of_the_system_while_saving_has_a_hint(
    two: Path, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with Disk(two, environ=place()) as disk:
        monkeypatch.setattr(LocalStorage, "make", refuse)
        error = disk.save(state(3), 3).exception()
    assert isinstance(error, CheckpointSaveError)
    usual = "Training goes on, and the next checkpoint is tried as usual."
    assert str(error).splitlines()[1:] == [f"{remedy} {usual}".lstrip()]
    assert "The newest is still that of step 2." in str(error)


def test_a_save_that_was_refused_holds_no_state(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that was gathered for one save takes memory as long as something holds it."""
    with Disk(two, environ=place()) as disk:
        monkeypatch.setattr(disk._ownership, "saver", None)
        monkeypatch.setattr(disk._ownership, "take", refuse_to_save)
        given = {"model": torch.ones(4)}
        gathered = weakref.ref(given["model"])
        future = disk.save(given, 3)
        del given
        gc.collect()
        assert gathered() is None
        with pytest.raises(CheckpointSaveError, match="The checkpoint of step 3 was not saved"):
            future.result()


def refuse_to_save() -> None:
    raise PeerFailedError("rank 0: the disk is full")


@pytest.mark.parametrize("saved", [0, 1])
def test_no_hint_asks_to_keep_fewer_checkpoints_than_one(
    root: Path, monkeypatch: pytest.MonkeyPatch, saved: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Disk(root, environ=place()) as disk:
        for step in range(saved):
            disk.save(state(step), step).result()
        monkeypatch.setattr(LocalStorage, "make", refuse)
        error = disk.save(state(saved), saved).exception()
    assert str(error).splitlines()[1:] == [
        "Free some space. Training goes on, and the next checkpoint is tried as usual."
    ]


@pytest.mark.parametrize("what", ["a file", "a file for its claims"])
def test_a_path_that_cannot_be_a_directory_of_checkpoints_is_refused_in_words(root: Path, what: str) -> None:
    if what == "a file":
        root.write_text("mine")
    else:
        root.mkdir()
        (root / ".claims").write_text("mine")
    with pytest.raises(
        CheckpointSaveError, match=f"^No checkpoints can be kept in {root}: rank 0: .*\nName a directory"
    ):
        Disk(root)


@pytest.mark.parametrize("what", ["a directory", "a file"])
def test_something_else_that_is_named_latest_keeps_nothing_from_being_saved(
    two: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """As a copy of the directory has it that was made by a tool that knows no links."""
    os.unlink(two / "latest")
    if what == "a file":
        (two / "latest").write_text("")
    else:
        shutil.copytree(folder(two, 2), two / "latest")
    with Disk(two, environ=place(), keep=2) as disk:
        assert disk.save(state(3), 3).result().step == 3
    assert names(two) == [2, 3], "older ones are removed as ever"
    assert not [path for path in two.iterdir() if path.name.endswith(".tmp")]
    if what == "a file":
        assert os.readlink(two / "latest") == folder(two, 3).name
    else:
        assert f"{two}/latest could not be moved: " in caplog.text


def test_wrong_use_is_refused(root: Path) -> None:
    with pytest.raises(UsageError, match="keep is 0"):
        Disk(root, keep=0)
    with pytest.raises(UsageError, match="interval is 'often'"):
        Disk(root, interval="often")  # type: ignore[arg-type]  # that is the point
    with Disk(root) as disk:
        disk.save(state(2), 2)
        with pytest.raises(UsageError, match="Step 2 cannot be saved after step 2"):
            disk.save(state(2), 2)
    with Disk(root, read_only=True) as reader, pytest.raises(UsageError, match="read_only"):
        reader.save(state(3), 3)
    assert not (root / ".claims" / "run-0002.json").exists()


def test_alone_among_other_ranks_nothing_can_be_saved(root: Path) -> None:
    among_others = {**place(), "WORLD_SIZE": "2"}
    with pytest.raises(UsageError, match="A Disk needs the process group"):
        Disk(root, environ=among_others)
    Disk(root, environ=among_others, read_only=True).close()


def test_a_reader_claims_nothing(two: Path) -> None:
    before = sorted(os.listdir(two / ".claims"))
    with Disk(two, read_only=True) as disk:
        assert disk.newest(verify=False) is not None
    assert sorted(os.listdir(two / ".claims")) == before


def test_every_so_many_steps(root: Path) -> None:
    with Disk(root, interval=3) as disk:
        assert [step for step in range(1, 10) if disk.due(step)] == [3, 6, 9]
    with Disk(root, interval=timedelta(hours=1)) as disk:
        assert not any(disk.due(step) for step in range(1, 10))
        assert disk.due(9, last=True)
    with Disk(root, interval=None) as disk:
        assert not any(disk.due(step, last=step == 20) for step in range(1, 21)), "never"
    with Disk(root, interval=1, read_only=True) as disk:
        assert not disk.due(1)
        assert not disk.due(1, last=True)


def test_the_record_of_failures_is_carried_on(root: Path) -> None:
    for round in (1, 2, 3):
        with Disk(root, environ=place(round=round)) as disk:
            disk.load()
            disk.save(state(round), round).result()
    content = json.loads((folder(root, 3) / "manifest.json").read_text())
    assert content["failures"] == 2
    assert content["seconds"] > 0
