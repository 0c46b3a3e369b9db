"""Which of the snapshots that failed runs have left a new run goes on from."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from elastic_torch.memory.buffers import Buffer, Snapshot
from elastic_torch.memory.rescue import Rescue, candidates, directories, is_newer, opened
from elastic_torch.memory.rescue_files import Rescued
from elastic_torch.state.state_exchange import Peers
from elastic_torch.state.state_tree import put_together, take_apart
from elastic_torch.version import Place, Stamp


@dataclass
class Newest:
    """A checkpoint on disk."""

    run_uid: str
    round: int
    step: int


FILE = Rescued("/there/b/x", "b", 2, 7, None, None, 100, "", ("a", 1, 4), 5.0)


@pytest.mark.parametrize(
    ("newest", "newer"),
    [
        pytest.param(None, True, id="there is no checkpoint"),
        pytest.param(Newest("a", 1, 4), True, id="that with which the failed run began"),
        pytest.param(Newest("b", 2, 6), True, id="the failed run's own, older"),
        pytest.param(Newest("b", 1, 9), True, id="the failed run's own, of an earlier round"),
        pytest.param(Newest("b", 2, 7), False, id="the same step"),
        pytest.param(Newest("b", 3, 1), False, id="the failed run's own, of a later round"),
        pytest.param(Newest("c", 1, 5), False, id="a run's that came later"),
        pytest.param(Newest("a", 1, 5), False, id="one that the failed run did not know"),
    ],
)
def test_a_snapshot_is_newer_than_a_checkpoint_by_round_and_step(newest: Newest | None, newer: bool) -> None:
    assert is_newer(FILE, newest) is newer


def shard(rank: int, step: int, world: int = 2) -> Rescued:
    return replace(FILE, rank=rank, world=world, step=step, path=f"/there/b/{step}-{rank}")


Picked = tuple[int, dict[int, list[str]]]


def picked(*offers: list[Rescued], newest: Newest | None = None, whole: bool = True) -> tuple[list[Picked], list[str]]:
    """Of each candidate its step, and who reads what; and what is refused."""
    found, refused = candidates(offers, newest, whole=whole)
    paths = [{rank: [file.path for file in files] for rank, files in each.files.items()} for each in found]
    return [(each.step, its) for each, its in zip(found, paths, strict=True)], refused


def test_the_newest_of_the_last_run_is_first() -> None:
    older, later = replace(FILE, step=6, path="/there/b/w"), replace(FILE, run="c", round=1, step=3, modified=9.0)
    found, refused = picked([older, FILE, later], [FILE])
    assert [step for step, _ in found] == [3, 7, 6]
    assert refused == []


def test_one_rank_reads_what_all_see() -> None:
    assert picked([FILE], [FILE]) == ([(7, {0: [FILE.path], 1: []})], [])
    assert picked([], [FILE]) == ([(7, {0: [], 1: [FILE.path]})], [])


def test_each_rank_reads_the_part_of_its_number_where_it_sees_that() -> None:
    both = [shard(0, 5), shard(1, 5)]
    assert picked(both, both, whole=False)[0] == [(5, {0: ["/there/b/5-0"], 1: ["/there/b/5-1"]})]
    assert picked([shard(1, 5)], [shard(0, 5)], whole=False)[0] == [(5, {0: ["/there/b/5-1"], 1: ["/there/b/5-0"]})]
    four = [shard(rank, 5, 4) for rank in range(4)]
    assert picked(four, four, whole=False)[0] == [
        (5, {0: ["/there/b/5-0", "/there/b/5-2"], 1: ["/there/b/5-1", "/there/b/5-3"]})
    ]


def test_an_incomplete_snapshot_is_refused_by_name_and_the_step_before_is_taken() -> None:
    found, refused = picked([shard(0, 6), shard(0, 5)], [shard(1, 5)], whole=False)
    assert found == [(5, {0: ["/there/b/5-0"], 1: ["/there/b/5-1"]})]
    assert refused == [
        "The snapshot of step 6 in /there/b, of run b, is incomplete: no node that is here has the part of rank 1 of 2."
    ]


def test_other_kinds_of_models_too_many_ranks_and_older_ones_are_refused() -> None:
    assert "is of a model that is not sharded, and this one is" in picked([FILE], whole=False)[1][0]
    assert "is of a model that is sharded, and this one is not" in picked([shard(0, 5, 1)])[1][0]
    many = [shard(rank, 5, 5) for rank in range(5)]
    assert "is of 5 ranks, more than four for each" in picked(many, whole=False)[1][0]
    [text] = picked([FILE], newest=Newest("c", 1, 5))[1]
    assert text.endswith("older than the newest checkpoint of step 5: nothing reads it, and it may be removed.")


@pytest.mark.parametrize(
    ("directory", "chosen", "expected"),
    [
        (None, "", []),
        ("/ckpt", "/chosen", [("/ckpt/rescued", False), ("/chosen/KEY", False)]),
        ("/ckpt", "", [("/ckpt/rescued", False), (f"/var/tmp/elastic-rescued-{os.geteuid()}/KEY", True)]),
        ("s3://bucket/ckpt", "/chosen", [("/chosen/KEY", False)]),
        (None, "/chosen", [("/chosen/KEY", False)]),
    ],
)
def test_where_snapshots_go(directory: str | None, chosen: str, expected: list[tuple[str, bool]]) -> None:
    job = "/there/train.py\0--lr=3" if directory is None else directory
    key = hashlib.sha256(f"{job}\ntrain".encode()).hexdigest()[:16]
    assert directories("train", directory, chosen, ["/there/train.py", "--lr=3"]) == [
        (path.replace("KEY", key), spare) for path, spare in expected
    ]


STATE = {"w": torch.arange(9.0)}


def written(folder: Path) -> Path:
    """A file as an agent writes it."""
    said, tensors = take_apart(STATE)
    buffer = Buffer.create("test", tensors, 100)
    buffer.write(Stamp(2, 7), said, tensors)
    data = buffer.bytes()[: buffer.used()].numpy().tobytes()
    buffer.close()
    (path := folder / "b" / "train_round-00002_step-000000007.snapshot").parent.mkdir(parents=True)
    path.write_bytes(data)
    body = {"format": 1, "name": "train", "run": "b", "base": None, "whole": True, "round": 2, "step": 7}
    more = {"rank": None, "world": None, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "node": "n"}
    path.with_suffix(".json").write_text(json.dumps(body | more))
    return path


def rescue(folder: Path) -> tuple[Rescue, Path]:
    """Return the snapshots that a new run finds where those without a disk go, and that directory."""
    made = Rescue("train", None, Place("new", 1, 0), whole=True, environ={"ELASTIC_RESCUE_DIR": str(folder)})
    return made, Path(directories("train", None, str(folder), sys.argv)[0][0])


def test_a_snapshot_is_kept_as_one_of_round_0(tmp_path: Path) -> None:
    made, folder = rescue(tmp_path)
    path = written(folder)
    before = path.read_bytes()
    [candidate] = made.find(Peers(), None)
    kept: list[tuple[Stamp, Snapshot]] = []
    assert made.take(Peers(), candidate, lambda *what: kept.append(what))
    [(stamp, snapshot)] = kept
    assert stamp == Stamp(0, 7)
    assert torch.equal(put_together(snapshot.said, snapshot.views.__getitem__)["w"], STATE["w"])
    snapshot.views[0].fill_(9)
    assert path.read_bytes() == before, "what is changed stays in memory"


def test_one_flipped_bit_is_refused_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, folder = rescue(tmp_path)
    path = written(folder)
    data = bytearray(path.read_bytes())
    data[4100] ^= 1
    path.write_bytes(data)
    [candidate] = made.find(Peers(), None)
    with pytest.raises(ValueError, match="its checksum is wrong"):
        opened(candidate.first)
    assert not made.take(Peers(), candidate, lambda *_: pytest.fail("it was used"))
    assert f"{path} is damaged: its checksum is wrong" in caplog.text


def test_a_snapshot_of_another_release_is_passed_over_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, folder = rescue(tmp_path)
    path = written(folder)
    body = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({"format": 2, "name": "train", "run": body["run"]}))
    assert made.find(Peers(), None) == []
    assert f"{path.with_suffix('.json')} is of format 2, and this release reads format 1" in caplog.text
    assert "start the job with the release that wrote it" in caplog.text


KILLED = """
import itertools, os, sys, threading
from elastic_torch.memory.rescue_files import write
from elastic_torch.memory.snapshot_format import COMPLETE, HEADER, MAGIC, Request, Target, snapshot_in
fd = os.memfd_create("a")
os.write(fd, HEADER.pack(MAGIC, COMPLETE, HEADER.size, 1000, 0))
os.write(fd, b"[2, 7, ".ljust(1000))
call, which, calls = getattr(os, sys.argv[3]), int(sys.argv[4]), itertools.count(1)
def last(*args):
    call(*args)
    if next(calls) == which:
        os.kill(os.getpid(), int(sys.argv[2]))
setattr(os, sys.argv[3], last)
request = Request("train", "b", True, targets=(Target(sys.argv[1]),))
write(request, snapshot_in(fd), "n", threading.Event())
"""


def write_until(folder: Path, call: str, which: int, signum: signal.Signals) -> subprocess.Popen[bytes]:
    """An agent that writes a snapshot, and has a signal after that call."""
    return subprocess.Popen([sys.executable, "-c", KILLED, str(folder), str(int(signum)), call, str(which)])


unfinished = pytest.mark.parametrize(
    ("call", "which", "names"),
    [
        pytest.param("fsync", 1, {".partial"}, id="the snapshot is half-written"),
        pytest.param("rename", 1, {".snapshot"}, id="the JSON file is not begun"),
        pytest.param("fsync", 2, {".snapshot", ".json.partial"}, id="the JSON file is half-written"),
    ],
)


@unfinished
def test_unfinished_files_of_a_killed_agent_are_removed_by_the_next_run(
    tmp_path: Path, call: str, which: int, names: set[str]
) -> None:
    made, folder = rescue(tmp_path)
    write_until(folder, call, which, signal.SIGKILL).wait()
    assert {"".join(path.suffixes) for path in (folder / "b").iterdir()} == names
    others = {folder / "b" / "notes.partial", folder / "b" / "notes.snapshot"}
    for other in others:
        other.touch()
    assert made.find(Peers(), None) == []
    assert {*(folder / "b").iterdir()} == others, "they are none of ours"


@unfinished
def test_files_that_an_agent_is_writing_stay(tmp_path: Path, call: str, which: int, names: set[str]) -> None:
    made, folder = rescue(tmp_path)
    writer = write_until(folder, call, which, signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, writer.pid, os.WSTOPPED)
        assert made.find(Peers(), None) == []
        assert {"".join(path.suffixes) for path in (folder / "b").iterdir()} == names
    finally:
        writer.kill()
        writer.wait()


def test_a_snapshot_that_is_finished_when_its_lock_is_free_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, folder = rescue(tmp_path)
    writer, lock = write_until(folder, "rename", 1, signal.SIGSTOP), fcntl.flock

    def lock_after_the_writer(*args: int) -> None:
        writer.send_signal(signal.SIGCONT)
        writer.wait()
        lock(*args)

    try:
        os.waitid(os.P_PID, writer.pid, os.WSTOPPED)
        monkeypatch.setattr(fcntl, "flock", lock_after_the_writer)
        assert [found.step for found in made.find(Peers(), None)] == [7]
    finally:
        writer.kill()
        writer.wait()
    assert {path.suffix for path in (folder / "b").iterdir()} == {".snapshot", ".json"}


def test_a_snapshot_that_another_agent_writes_anew_stays(tmp_path: Path) -> None:
    made, folder = rescue(tmp_path)
    write_until(folder, "rename", 1, signal.SIGKILL).wait()
    writer = write_until(folder, "fsync", 1, signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, writer.pid, os.WSTOPPED)
        assert made.find(Peers(), None) == []
        assert {path.suffix for path in (folder / "b").iterdir()} == {".snapshot", ".partial"}
    finally:
        writer.kill()
        writer.wait()


@pytest.mark.parametrize("suffix", [".partial", ".snapshot"])
@pytest.mark.parametrize("age", [60.0, 100_000.0])
def test_where_files_cannot_be_locked_what_is_old_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float, suffix: str
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    made, folder = rescue(tmp_path)
    left = folder / "b" / f"train_round-00002_step-000000007_0badcafe{suffix}"
    left.parent.mkdir(parents=True)
    left.touch()
    os.utime(left, (time.time() - age, time.time() - age))
    assert made.find(Peers(), None) == []
    assert left.exists() is (age < 86400)


def test_a_file_without_a_valid_description_is_no_snapshot(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, folder = rescue(tmp_path)
    path = written(folder)
    body = json.loads(path.with_suffix(".json").read_text())
    for other in (None, 7, {**body, "base": []}, {**body, "base": "abc"}):
        caplog.clear()
        path.with_suffix(".json").write_text(json.dumps(other))
        assert made.find(Peers(), None) == []
        assert "cannot be read, and is passed over" in caplog.text
    path.with_suffix(".json").unlink()
    assert made.find(Peers(), None) == []
