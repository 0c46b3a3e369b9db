"""Snapshots in memory, as the agent shows them and writes them to a directory when a job has failed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elastic_core import AgentEnd
from elastic_core.agent.event_loop import EventLoop
from elastic_core.agent.membership import signal_received
from elastic_core.events import Event
from elastic_core.monitors import RunningRound
from elastic_torch.memory.agent import Snapshots
from elastic_torch.memory.fd_store import FdStore
from elastic_torch.memory.rescue_files import Written, requests, snapshots, worth_writing, write
from elastic_torch.memory.snapshot_format import COMPLETE, HEADER, MAGIC, WRITING, KeptSnapshot, Request, Target
from elastic_torch.version import Stamp


class Memory:
    """Memory files by name, as workers leave them."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}

    def put(self, name: str, data: bytes) -> bytes:
        fd = os.memfd_create(name)
        os.write(fd, data)
        self.held[name] = fd
        return data

    def snapshot(self, name: str, round: int, step: int, part: str = '"all"', *, complete: bool = True) -> bytes:
        """One of 64 KiB, with something behind it that does not count."""
        text, start = f"[{round}, {step}, {part}, []]".encode(), 1 << 16
        header = HEADER.pack(MAGIC, COMPLETE if complete else WRITING, start, len(text), 0)
        data = header.ljust(start, bytes([step])) + text
        self.put(name, data + b"the rest of the file")
        return data

    def request(self, name: str, *targets: Target, saved: Stamp | None = None, whole: bool = True) -> None:
        given = tuple(Target(str(path), spare) for path, spare in targets)
        self.put(f"{name}/rescue", Request(name, "abc", whole, ["old", 1, 2], saved, given).packed())

    def plugin(self) -> Snapshots:
        """The agent's plugin, which keeps these files."""
        plugin = Snapshots()
        plugin.store = FdStore()
        plugin.store.held.update({name: os.dup(fd) for name, fd in self.held.items()})
        return plugin

    def rescue(self, publish: Callable[[Event], None], node: str = "n") -> None:
        with closing(EventLoop({signal.SIGUSR1})) as loop:
            self.plugin().elastic_agent_ends(AgentEnd(node, publish, partial(signal_received, loop.untaken_signals)))


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    for fd in made.held.values():
        os.close(fd)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_newest_complete_snapshot_is_written_with_what_is_known_of_it(memory: Memory, tmp_path: Path) -> None:
    said: list[Event] = []
    memory.request("train", Target(str(tmp_path / "there")))
    memory.snapshot("train/0/0", 2, 7)
    data = memory.snapshot("train/1/0", 2, 8)
    memory.snapshot("train/1/1", 2, 9, complete=False)
    memory.snapshot("other/0/0", 3, 9)
    memory.put("train/2/0", b"short")
    memory.rescue(said.append, "host:1")
    name = "train_round-00002_step-000000008"
    assert files(tmp_path / "there") == [f"abc/{name}.json", f"abc/{name}.snapshot"]
    assert (tmp_path / "there" / "abc" / f"{name}.snapshot").read_bytes() == data
    described = json.loads((tmp_path / "there" / "abc" / f"{name}.json").read_text())
    assert described == {
        "format": 1,
        "name": "train",
        "run": "abc",
        "base": ["old", 1, 2],
        "whole": True,
        "node": "host:1",
        "round": 2,
        "step": 8,
        "rank": None,
        "world": None,
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    assert [event.name for event in said] == ["rescue_failed", "rescuing", "rescued"], "other has no place on disk"
    memory.rescue(said.append, "host:2")
    assert json.loads((tmp_path / "there" / "abc" / f"{name}.json").read_text()) == described, "another node has it"


def test_of_a_sharded_state_each_part_is_written_once(memory: Memory, tmp_path: Path) -> None:
    memory.request("train", Target(str(tmp_path)), whole=False)
    for name, rank, step in (("0/0", 0, 5), ("0/1", 0, 6), ("1/0", 1, 6), ("0/replica/0/1", 1, 6)):
        memory.snapshot(f"train/{name}", 1, step, f'{{"rank": {rank}, "world": 2, "tree": 1}}')
    memory.rescue(lambda _: None)
    assert [name for name in files(tmp_path / "abc") if name.endswith(".snapshot")] == [
        "train_round-00001_step-000000005_rank-00000-of-00002.snapshot",
        "train_round-00001_step-000000006_rank-00000-of-00002.snapshot",
        "train_round-00001_step-000000006_rank-00001-of-00002.snapshot",
    ]


def test_nothing_is_written_that_nobody_asked_for_or_that_is_on_disk(memory: Memory, tmp_path: Path) -> None:
    said: list[Event] = []
    memory.snapshot("train/0/0", 2, 7)
    memory.rescue(said.append)
    assert [event.name for event in said] == ["rescue_failed"]
    memory.request("train", Target(str(tmp_path)), saved=Stamp(2, 7))
    memory.rescue(said.append)
    assert len(said) == 1
    assert files(tmp_path) == []


def test_a_state_that_has_no_place_on_disk_is_lost_and_that_is_said(memory: Memory, tmp_path: Path) -> None:
    said: list[Event] = []
    memory.request("train", Target(str(tmp_path / "there")))
    memory.snapshot("train/0/0", 2, 7)
    memory.snapshot("other/0/0", 3, 9)
    memory.snapshot("other/1/0", 3, 8)
    memory.rescue(said.append, "host:1")
    lost, *_, written = said
    assert (lost.name, lost.fields["step"], written.name) == ("rescue_failed", 9, "rescued")
    assert "step 9 was only in memory, and is lost with the job: the next run begins without it." in lost.message
    assert "TrainState(disk=...)" in lost.message, "what to do"


def test_a_snapshot_of_another_release_is_lost_and_that_is_published(memory: Memory, tmp_path: Path) -> None:
    said: list[Event] = []
    memory.request("train", Target(str(tmp_path)))
    memory.snapshot("train/0/0", 2, 7)
    memory.snapshot("train/1/0", 2, 8)
    memory.snapshot("train/1/1", 2, 9, complete=False)
    os.pwrite(memory.held["train/1/0"], b"elastic2", 0)
    memory.put("other/rescue", b'{"version": 2}')
    memory.rescue(said.append)
    assert [event.name for event in said] == ["rescue_failed", "rescuing", "rescued"]
    assert said[0].message == (
        "what workers have left in memory as other/rescue, train/1/0 is lost: this agent's release does not read it. "
        "Use one release of Elastic for agents and workers"
    )


def kept(round: int, step: int, rank: int | None = None, fd: int = 0) -> KeptSnapshot:
    return KeptSnapshot(fd, 100, Stamp(round, step), rank, None if rank is None else 2)


REQUEST = Request("train", "abc", True)


@pytest.mark.parametrize(
    ("request_", "there", "expected"),
    [
        pytest.param(REQUEST, [], [], id="nothing there"),
        pytest.param(REQUEST, [kept(2, 5), kept(1, 9)], [kept(2, 5)], id="a later round is newer"),
        pytest.param(REQUEST, [kept(0, 5)], [], id="it was read from such a file"),
        pytest.param(replace(REQUEST, saved=Stamp(2, 4)), [kept(2, 5)], [kept(2, 5)], id="the disk is older"),
        pytest.param(replace(REQUEST, saved=Stamp(2, 5)), [kept(2, 5)], [], id="the disk is as new"),
        pytest.param(replace(REQUEST, saved=Stamp(3, 1)), [kept(2, 5)], [], id="the disk is of a later round"),
        pytest.param(
            replace(REQUEST, whole=False),
            [kept(2, 5, 1), kept(2, 5, 0, 1), kept(2, 5, 0, 2), kept(2, 4, 0)],
            [kept(2, 5, 1), kept(2, 5, 0, 2), kept(2, 4, 0)],
            id="all parts, each once",
        ),
    ],
)
def test_a_snapshot_is_worth_writing_where_it_is_newer_and_whole(
    request_: Request, there: list[KeptSnapshot], expected: list[KeptSnapshot]
) -> None:
    assert worth_writing(request_, there) == expected


def test_a_directory_that_is_full_is_left_as_it_was_and_the_next_is_tried(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.snapshot("train/0/0", 2, 7)
    [it] = snapshots(memory.held, "train")
    real = os.write

    def full(fd: int, data: Any) -> int:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if "/full/" in path and os.fstat(fd).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data[:1000] if "/full/" in path else data)

    monkeypatch.setattr(os, "write", full)
    targets = (Target(str(tmp_path / "full")), Target(str(tmp_path / "free")))
    written = write(replace(REQUEST, targets=targets), it, "n", threading.Event())
    assert written.path is not None
    assert written.path.is_relative_to(tmp_path / "free")
    assert files(tmp_path / "full") == []
    lost = write(replace(REQUEST, targets=targets[:1]), it, "n", threading.Event())
    assert lost == Written(it, why=f"{tmp_path}/full: No space left on device")


def test_a_snapshot_whose_description_does_not_fit_does_not_stay(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.snapshot("train/0/0", 2, 7)
    [it] = snapshots(memory.held, "train")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(json, "dump", full)
    assert write(replace(REQUEST, targets=(Target(str(tmp_path)),)), it, "n", threading.Event()).path is None
    assert files(tmp_path) == []


def test_a_snapshot_whose_folder_cannot_be_synced_does_not_stay(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JSON file without its snapshot would tell other nodes that the snapshot is there."""
    memory.snapshot("train/0/0", 2, 7)
    [it] = snapshots(memory.held, "train")
    real = os.fsync

    def sync(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    result = write(replace(REQUEST, targets=(Target(str(tmp_path)),)), it, "n", threading.Event())
    assert result == Written(it, why=f"{tmp_path}: Input/output error")
    assert files(tmp_path) == []


def test_a_snapshot_that_says_to_be_longer_than_its_file_is_none(memory: Memory) -> None:
    for number, start in enumerate((1 << 16, 1 << 63)):
        text = b'[2, 7, "all", []]'
        header = HEADER.pack(MAGIC, COMPLETE, start, 1 << 20, 0)
        memory.put(f"train/0/{number}", header.ljust(1 << 16, b".") + text)
    assert snapshots(memory.held, "train") == []


def test_a_snapshot_that_was_cut_off_meanwhile_is_lost_and_the_writing_ends(memory: Memory, tmp_path: Path) -> None:
    memory.snapshot("train/0/0", 2, 7)
    [it] = snapshots(memory.held, "train")
    os.ftruncate(it.fd, 100)
    result = write(replace(REQUEST, targets=(Target(str(tmp_path)),)), it, "n", threading.Event())
    assert result == Written(it, why=f"{tmp_path}: it was written to meanwhile")
    assert files(tmp_path) == []


def test_a_file_that_somebody_removes_while_it_is_written_is_an_error_of_its_directory_only(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.snapshot("train/0/0", 2, 7)
    [it] = snapshots(memory.held, "train")
    real = os.fsync

    def removes(fd: int) -> None:
        if (path := os.readlink(f"/proc/self/fd/{fd}")).startswith(f"{tmp_path}/a/"):
            os.unlink(path)
        real(fd)

    monkeypatch.setattr(os, "fsync", removes)
    targets = (Target(str(tmp_path / "a")), Target(str(tmp_path / "b")))
    written = write(replace(REQUEST, targets=targets), it, "n", threading.Event())
    assert written.path is not None
    assert written.path.is_relative_to(tmp_path / "b")


def test_nodes_that_share_a_directory_without_locks_write_a_file_each(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their snapshots may differ, as each has random numbers of its own: a mixture of two would be damaged."""
    data = [memory.snapshot("train/0/0", 2, 7, '"one"'), memory.snapshot("train/1/0", 2, 7, '"another"')]
    nodes = snapshots(memory.held, "train")
    request, other = replace(REQUEST, targets=(Target(str(tmp_path)),)), list[Written]()
    real = os.fsync

    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def meanwhile(fd: int) -> None:
        monkeypatch.setattr(os, "fsync", real)
        other.append(write(request, nodes[1], "n2", threading.Event()))
        real(fd)

    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(os, "fsync", meanwhile)
    results = [write(request, nodes[0], "n1", threading.Event()), *other]
    paths = [result.path for result in results if result.path is not None]
    assert sorted(path.read_bytes() for path in paths) == sorted(data)
    for path in paths:
        described = json.loads(path.with_suffix(".json").read_bytes())
        assert described["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert len(files(tmp_path)) == 4


def test_when_there_is_no_more_time_nothing_half_written_stays(memory: Memory, tmp_path: Path) -> None:
    memory.snapshot("train/0/0", 2, 7)
    [it] = snapshots(memory.held, "train")
    stop = threading.Event()
    stop.set()
    request = replace(REQUEST, targets=(Target(str(tmp_path / "a")), Target(str(tmp_path / "b"))))
    assert write(request, it, "n", stop) == Written(it, why=f"{tmp_path}/a: there was no more time")
    assert files(tmp_path) == []


def test_a_signal_ends_the_writing(memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process holds the file, as a node that writes the same does."""
    memory.snapshot("train/0/0", 2, 7)
    memory.request("train", Target(str(tmp_path)))
    (tmp_path / "abc").mkdir()
    held, release = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        fd = os.open(tmp_path / "abc" / "train_round-00002_step-000000007.partial", os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.write(held[1], b".")
        os.read(release[0], 1)
        os._exit(0)
    os.read(held[0], 1)
    said: list[Event] = []
    lock = fcntl.flock

    def interrupted(fd: int, operation: int) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", interrupted)
    memory.rescue(said.append)
    os.write(release[1], b".")
    os.waitpid(pid, 0)
    for fd in (*held, *release):
        os.close(fd)
    assert files(tmp_path) == ["abc/train_round-00002_step-000000007.partial"], "it is the other one's"
    assert [event.name for event in said] == ["rescuing", "rescue_failed"]
    assert "the agent received SIGUSR1" in said[1].message


def test_a_directory_that_nobody_named_is_this_users_alone_and_stays_free_enough(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.snapshot("train/0/0", 2, 7)
    [it] = snapshots(memory.held, "train")
    target = Target(str(tmp_path / "spare" / "key"), spare=True)
    request = replace(REQUEST, targets=(target,))
    (tmp_path / "spare").mkdir()
    (tmp_path / "spare").chmod(0o777)
    result = write(request, it, "n", threading.Event())
    assert result.path is None
    assert "is not this user's alone" in result.why
    (tmp_path / "spare").chmod(0o700)
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: os.statvfs_result((1, 1, 100, 4, 4, 9, 9, 9, 0, 255)))
        result = write(request, it, "n", threading.Event())
    assert result.path is None
    assert "less than 5% of its disk would stay free" in result.why
    assert write(request, it, "n", threading.Event()).path is not None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        json.dumps({"run": "../..", "whole": True, "base": None, "saved": None, "targets": []}).encode(),
        json.dumps({"run": "a", "whole": True, "base": None, "saved": [1], "targets": []}).encode(),
        json.dumps({"run": "a", "whole": True, "base": None, "saved": None, "targets": [1]}).encode(),
    ],
)
def test_a_request_that_makes_no_sense_is_none(memory: Memory, data: bytes) -> None:
    memory.put("train/rescue", data)
    assert requests(memory.held) == []


def test_a_signal_from_before_the_writing_leaves_the_directory_as_it_was(memory: Memory, tmp_path: Path) -> None:
    memory.snapshot("train/0/0", 2, 7)
    memory.request("train", Target(str(tmp_path / "there")))
    said: list[Event] = []
    with closing(EventLoop({signal.SIGUSR1})) as loop:
        os.kill(os.getpid(), signal.SIGUSR1)
        memory.plugin().elastic_agent_ends(AgentEnd("n", said.append, partial(signal_received, loop.untaken_signals)))
    assert [event.name for event in said] == ["rescuing", "rescue_failed"]
    assert said[1].message == (
        f"the snapshot of step 7 is lost: {tmp_path}/there: there was no more time (the agent received SIGUSR1)"
    )
    assert not (tmp_path / "there").exists()


def test_the_newest_snapshot_of_all_is_shown(memory: Memory) -> None:
    round = RunningRound(1, "run", ["n"], Path())
    Snapshots().elastic_round_starts(round)
    assert round.callbacks.find_snapshot() is None
    memory.snapshot("train/0/0", 2, 7)
    memory.snapshot("other/0/0", 3, 4)
    memory.snapshot("other/0/1", 4, 1, complete=False)
    plugin, round = memory.plugin(), RunningRound(1, "run", ["n"], Path())
    plugin.elastic_round_starts(round)
    assert round.callbacks.find_snapshot() == (3, 4)
    plugin.elastic_agent_ends(AgentEnd("n", lambda event: None, is_last=lambda: False))
    assert round.callbacks.find_snapshot() is None


def test_files_that_cannot_be_written_are_named(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    memory.put("train/0/0", b"")
    memory.put("other", b"")
    monkeypatch.setattr("elastic_torch.memory.rescue_files.rescue", full)
    said: list[Event] = []
    before, plugin = os.listdir("/proc/self/fd"), memory.plugin()
    plugin.elastic_agent_ends(AgentEnd("n", said.append))
    assert [(event.name, event.message) for event in said] == [
        (
            "rescue_failed",
            "what workers have left in memory as other, train is lost: writing it failed with "
            "OSError(24, 'Too many open files')",
        )
    ]
    assert os.listdir("/proc/self/fd") == before


SNAPSHOT_IN_AN_AGENT = """
import os, sys, threading
from elastic_torch.memory.agent import Snapshots
parts = {f"elastic_torch.memory.{name}" for name in ("fd_store", "snapshot_format", "rescue_files")}
assert not parts & {*sys.modules}
snapshots = Snapshots()
assert snapshots.newest() is None
from elastic_torch.memory.fd_store import FdStore
from elastic_torch.memory.snapshot_format import COMPLETE, HEADER, MAGIC
fd = os.memfd_create("train")
os.write(fd, HEADER.pack(MAGIC, COMPLETE, HEADER.size, 10, 0) + b"[2, 7, 0, ")
snapshots.store = FdStore()
snapshots.store.held["train/0/0"] = fd
assert snapshots.newest() == (2, 7)
for thread in threading.enumerate():
    if thread.name == "elastic-prepare":
        thread.join()
assert parts <= {*sys.modules}
assert "torch" not in sys.modules
"""


def test_the_agent_imports_its_part_when_there_is_a_snapshot_and_never_torch() -> None:
    """Imports take time at the start, and the environment may be gone when the job fails; torch takes much memory."""
    assert subprocess.run([sys.executable, "-c", SNAPSHOT_IN_AN_AGENT], check=False).returncode == 0
