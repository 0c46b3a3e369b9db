"""Several ranks, with one directory and with one for each node."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "disk_ranks.py"
pytestmark = pytest.mark.timeout(600)


SCENE_MAX_SECONDS = 240.0  # with torch's import before the first one
Play = Callable[..., tuple[list[dict[str, Any]], str]]


class Theatre:
    """Plays scenes in a process that imports torch once; one that fails ends it with all ranks, and a new begins."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.limit = SCENE_MAX_SECONDS

    def play(self, folder: Path, scene: str, *worlds: int) -> tuple[list[dict[str, Any]], str]:
        """Return the reports of the ranks, by act and rank, and their log."""
        try:
            code = self._perform(json.dumps([str(folder), scene, worlds]))
            said, log = (folder / "said").read_text(), (folder / "log").read_text()
            assert code == "0", said + log[-6000:]
        except BaseException:  # also the limit of pytest
            self.close()
            raise
        reports = [json.loads(line) for line in said.splitlines()]
        return sorted(reports, key=lambda facts: (facts["act"], facts["rank"])), log

    def _perform(self, line: str) -> str:
        """Return the exit code of a scene, '' if the process has ended, 'none' for a scene that hangs."""
        if self.process is None:
            pipe = subprocess.PIPE
            command = [sys.executable, str(SCRIPT)]
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], self.limit)[0]:
            return "none"
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        """End the process and all ranks, also those of a scene that hangs."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)  # it is not waited for yet, so its number is its own
            self.process.communicate()
        self.process = None


@pytest.fixture(scope="module")
def theatre() -> Iterator[Theatre]:
    """The theatre of these tests."""
    with closing(Theatre()) as theatre:
        yield theatre


@pytest.fixture
def play(theatre: Theatre) -> Play:
    """Plays scenes, for which torch is imported once."""
    return theatre.play


def living(group: int) -> list[str]:
    """Return the processes of a group that have not ended; what init has not waited for has."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, _, its_group = path.read_text().rpartition(") ")[2].split()[:3]
            if int(its_group) == group and state not in "XZ":
                found.append(path.parent.name)
    return found


def test_the_ranks_of_a_scene_that_hangs_are_ended_and_later_scenes_are_played(
    theatre: Theatre, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("first", "hangs", "last"):
        (tmp_path / name).mkdir()
    assert theatre.play(tmp_path / "first", "schedule", 1)[0]
    assert theatre.process is not None
    hung = theatre.process.pid
    assert living(hung) == [str(hung)]
    with monkeypatch.context() as patch:
        patch.setattr(theatre, "limit", 3.0)
        with pytest.raises(AssertionError, match="waits for ever"):
            theatre.play(tmp_path / "hangs", "hangs", 2)
    deadline = time.monotonic() + 10
    while living(hung) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not living(hung)
    assert theatre.play(tmp_path / "last", "schedule", 1)[0]


def nodes(folder: Path, act: int, *names: str) -> None:
    """Which directory each rank of an act has."""
    (folder / f"act-{act}-nodes").mkdir()
    for rank, name in enumerate(names):
        (folder / f"act-{act}-nodes" / str(rank)).write_text(name)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_sharded_state_loads_on_any_number_of_ranks(play: Play, tmp_path: Path) -> None:
    said, _ = play(tmp_path, "resharding", 2, 3, 1, 2)
    assert len(said) == 8
    assert all(facts["equal"] for facts in said)
    assert [facts["loaded"] for facts in said] == [None, None, 1, 1, 1, 2, 3, 3]
    assert all(facts["step"] == facts["act"] for facts in said)


def test_a_node_that_has_nothing_gets_the_newest_checkpoint_of_the_others(play: Play, tmp_path: Path) -> None:
    nodes(tmp_path, 0, "a", "a", "b")
    nodes(tmp_path, 1, "c", "b")
    nodes(tmp_path, 2, "a", "d")
    said, _ = play(tmp_path, "local_directories", 3, 2, 2)
    assert [facts["loaded"] for facts in said] == [None, None, None, 1, 1, 1, 1]
    # In the last act no node has step 2 any more; the nodes that have are gone.
    assert all(facts["equal"] for facts in said[3:])
    assert [facts["there"] for facts in said[3:]] == [["001"]] * 4


def test_a_copy_that_is_damaged_on_one_node_is_taken_from_another(play: Play, tmp_path: Path) -> None:
    nodes(tmp_path, 0, "a", "b")
    play(tmp_path, "local_directories", 2)
    for path in (tmp_path / "a").glob("run-*/*.distcp"):
        flip(path)
    (tmp_path / "meeting-0").unlink(missing_ok=True)
    nodes(tmp_path, 1, "a", "b")
    (tmp_path / "act-0-nodes").rename(tmp_path / "act-9-nodes")
    (tmp_path / "act-1-nodes").rename(tmp_path / "act-0-nodes")
    said, _ = play(tmp_path, "local_directories", 2)
    assert [(facts["loaded"], facts["equal"]) for facts in said] == [(1, True), (1, True)]
    assert all("the checksum of __0_0.distcp is wrong" in facts["damage"][0] for facts in said)


def test_shards_of_several_nodes_are_brought_together(play: Play, tmp_path: Path) -> None:
    nodes(tmp_path, 0, "a", "b")
    nodes(tmp_path, 1, "b", "c", "a")
    said, _ = play(tmp_path, "scattered", 2, 3)
    assert [facts["loaded"] for facts in said] == [0, 0, 1, 1, 1]
    assert all(facts["equal"] for facts in said)


def test_shards_of_a_lost_node_make_the_older_whole_one_the_newest(play: Play, tmp_path: Path) -> None:
    nodes(tmp_path, 0, "a")
    nodes(tmp_path, 1, "a", "b")
    nodes(tmp_path, 2, "a")
    said, log = play(tmp_path, "scattered", 1, 2, 1)
    assert [facts["loaded"] for facts in said] == [0, 1, 1, 1]
    assert all(facts["equal"] for facts in said)
    assert "is incomplete: no node that is here has __1_0.distcp intact" in log
    assert not (tmp_path / "a" / "damaged").exists(), "the node may come back"


def test_a_save_that_fails_on_one_rank_fails_on_all_and_training_goes_on(play: Play, tmp_path: Path) -> None:
    said, log = play(tmp_path, "one_rank_fails", 2)
    for facts in said:
        assert "The checkpoint of step 2 was not saved" in facts["error"]
        assert "rank 1: [Errno 28] No space left on device" in facts["error"]
        assert "The newest is still that of step 1." in facts["error"]
        assert "Training goes on" in facts["error"]
        assert facts["newest"] == 3
        assert not [name for name in facts["left"] if name.startswith(".saving")]
    assert "The checkpoint of step 2 was not saved" in log


def reads(folder: Path, act: int, code: int = 0, good: int = 0, *, ranks: tuple[int, ...] = (), **more: Any) -> None:
    """Which reads of an act fail, on which ranks; where its directories are, and what it saves."""
    how = {"code": code, "good": good, "ranks": ranks, "local": False, "save": [], **more}
    (folder / f"act-{act}-reads").write_text(json.dumps(how))


def contents(folder: Path) -> dict[str, bytes]:
    """The files of all checkpoints, wherever in the folder they lie."""
    found = (path for path in folder.rglob("run-*/*") if path.is_file() and "latest" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(found)}


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_read_error_that_one_rank_sees_is_an_error_on_both_and_nothing_is_touched(
    play: Play, tmp_path: Path, code: int
) -> None:
    reads(tmp_path, 0, save=[1, 2, 3])
    play(tmp_path, "unreadable", 2)
    before = contents(tmp_path / "shared")
    again = tmp_path / "again"
    again.mkdir()
    (tmp_path / "shared").rename(again / "shared")
    reads(again, 0, code, ranks=(0,))
    reads(again, 1, code, ranks=(1,))
    reads(again, 2)
    said, _ = play(again, "unreadable", 2, 2, 2)
    for facts in said[:4]:
        assert facts["kind"] == "CheckpointUnreadableError"
        assert all(f"step-{step:09}" in facts["error"] for step in (1, 2, 3)), "each is named"
        assert os.strerror(code) in facts["error"]
    assert [facts["error"] for facts in said[0:4:2]] == [facts["error"] for facts in said[1:4:2]], "to both alike"
    assert [(facts["loaded"], facts["equal"]) for facts in said[4:]] == [(3, True)] * 2, "once it can be read"
    assert contents(again / "shared") == before


@pytest.mark.parametrize("rank", [0, 1])
def test_a_read_error_between_the_check_and_the_load_stops_both(play: Play, tmp_path: Path, rank: int) -> None:
    reads(tmp_path, 0, save=[1, 2, 3])
    reads(tmp_path, 1, errno.EIO, 1, ranks=(rank,))
    said, _ = play(tmp_path, "unreadable", 2, 2)
    assert [facts["kind"] for facts in said[2:]] == ["CheckpointUnreadableError"] * 2
    assert all("step-000000003" in facts["error"] for facts in said[2:])
    assert len([*(tmp_path / "shared").glob("run-*")]) == 3


def test_with_a_directory_for_each_node_the_rank_that_cannot_read_gets_it_from_the_other(
    play: Play, tmp_path: Path
) -> None:
    reads(tmp_path, 0, save=[1, 2, 3], local=True)
    play(tmp_path, "unreadable", 2)
    before = {node: contents(tmp_path / node) for node in ("node-0", "node-1")}
    (tmp_path / "meeting-0").unlink(missing_ok=True)
    reads(tmp_path, 0, errno.EIO, ranks=(0, 1), local=True)
    said, _ = play(tmp_path, "unreadable", 2)
    assert [facts["kind"] for facts in said] == ["CheckpointUnreadableError"] * 2
    assert {node: contents(tmp_path / node) for node in before} == before
    (tmp_path / "meeting-0").unlink(missing_ok=True)
    reads(tmp_path, 0, errno.EIO, ranks=(1,), local=True)
    said, _ = play(tmp_path, "unreadable", 2)
    assert [(facts["loaded"], facts["equal"]) for facts in said] == [(3, True)] * 2
    assert contents(tmp_path / "node-0") == before["node-0"]
    after = contents(tmp_path / "node-1")
    assert set(before["node-1"].values()) <= set(after.values())


def test_one_flipped_bit_in_each_checkpoint_is_refused_by_both_ranks(play: Play, tmp_path: Path) -> None:
    reads(tmp_path, 0, save=[1, 2, 3])
    play(tmp_path, "unreadable", 2)
    for step, name in ((1, "__0_0.distcp"), (2, ".metadata"), (3, "manifest.json")):
        (found,) = (tmp_path / "shared").glob(f"run-*_step-{step:09}")
        flip(found / name)
    before = contents(tmp_path)
    (tmp_path / "meeting-0").unlink(missing_ok=True)
    reads(tmp_path, 0, save=[4])
    said, _ = play(tmp_path, "unreadable", 2)
    assert [facts["kind"] for facts in said] == ["CheckpointUnreadableError"] * 2
    assert said[0]["error"] == said[1]["error"]
    assert all(f"step-{step:09} is damaged" in said[0]["error"] for step in (1, 2, 3))
    assert contents(tmp_path) == before


def test_ranks_that_do_not_know_of_each_other_leave_one_winner(play: Play, tmp_path: Path) -> None:
    said, _ = play(tmp_path, "without_a_group", 3)
    errors = [facts["error"] for facts in said if facts["error"] is not None]
    assert len(errors) == 2
    for error in errors:
        assert "Step 1 of round 1 is saved in" in error
        assert "already, by" in error
        assert "pid" in error


def test_all_ranks_hear_at_the_same_steps_that_a_checkpoint_is_due(play: Play, tmp_path: Path) -> None:
    said, _ = play(tmp_path, "schedule", 2)
    assert said[0]["due"] == said[1]["due"]
    assert said[0]["due"][0] == 12
