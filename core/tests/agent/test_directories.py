"""Temporary directories that killed agents have left: which are removed, and which are not."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from elastic_core.agent import directories
from elastic_core.agent.directories import MARK, REMOVED_MAX, Slot, marked, remove_abandoned
from elastic_core.host.identity import boot_id, network_id

NOBODY = 65534


@pytest.fixture
def slot() -> Iterator[Slot]:
    with closing(Slot.take(f"test_scratch/{uuid.uuid4()}")) as taken:
        yield taken


def directory(parent: Path, name: str = "elastic_job", *, mode: int = 0o700) -> Path:
    made = parent / name
    made.mkdir()
    made.chmod(mode)
    return made


def abandoned(parent: Path, name: str = "elastic_job", *, text: str | None = None) -> Path:
    """Return the directory of an agent that was killed together with its warden."""
    made = directory(parent, name)
    (made / "round_1" / "rank_0").mkdir(parents=True)
    (made / MARK).write_text(f"{boot_id()} {network_id()}\nelastic/free" if text is None else text)
    (made / MARK).chmod(0o600)
    return made


def test_an_abandoned_directory_is_removed(tmp_path: Path) -> None:
    left = abandoned(tmp_path)
    assert remove_abandoned(parent=tmp_path) == [left]
    assert [*tmp_path.iterdir()] == []


def test_the_directory_of_a_living_node_stays_until_the_last_copy_of_its_slot_is_closed(
    tmp_path: Path, slot: Slot
) -> None:
    left = directory(tmp_path)
    holder = subprocess.Popen(["sleep", "1000"], pass_fds=[slot.fileno()])
    try:
        left_marked = marked(left, slot.name)
        left_marked.__enter__()
        assert remove_abandoned(parent=tmp_path) == []
        slot.close()
        assert remove_abandoned(parent=tmp_path) == [], "a process that the node has started lives"
    finally:
        holder.kill()
        holder.wait()
    assert remove_abandoned(parent=tmp_path) == [left]


def test_an_agent_that_is_started_again_removes_the_directory_of_its_former_life(tmp_path: Path, slot: Slot) -> None:
    """It has taken the slot that its former life had: a container that is restarted, under the same job id."""
    left = abandoned(tmp_path, text=f"{boot_id()} {network_id()}\n{slot.name}")
    assert remove_abandoned(parent=tmp_path) == []
    assert remove_abandoned(slot.name, tmp_path) == [left]


def test_an_agent_that_lives_to_its_end_takes_the_mark_away(tmp_path: Path, slot: Slot) -> None:
    """Files there afterwards, the results of a call, are not another agent's to remove."""
    made = directory(tmp_path)
    with marked(made, slot.name):
        assert os.listdir(made) == [MARK]
    assert os.listdir(made) == []
    slot.close()
    assert remove_abandoned(parent=tmp_path) == []


def test_a_directory_that_cannot_be_written_has_no_mark(tmp_path: Path) -> None:
    with marked(tmp_path / "missing", "elastic/free"):
        assert remove_abandoned(parent=tmp_path) == []


def lets_others_in(left: Path) -> None:
    left.chmod(0o750)


def belongs_to_another_user(left: Path) -> None:
    os.chown(left, NOBODY, -1)


def has_another_users_mark(left: Path) -> None:
    os.chown(left / MARK, NOBODY, -1)


def has_a_mark_that_others_may_write(left: Path) -> None:
    (left / MARK).chmod(0o622)


def has_no_mark(left: Path) -> None:
    (left / MARK).unlink()


def has_another_boots_mark(left: Path) -> None:
    (left / MARK).write_text(f"{uuid.uuid4()} {network_id()}\nelastic/free")


def has_another_networks_mark(left: Path) -> None:
    (left / MARK).write_text(f"{boot_id()} 00000000\nelastic/free")


def has_an_empty_mark(left: Path) -> None:
    (left / MARK).write_text("")


def has_a_link_for_a_mark(left: Path) -> None:
    (left / MARK).rename(left / "other")
    (left / MARK).symlink_to("other")


def has_a_fifo_for_a_mark(left: Path) -> None:
    (left / MARK).unlink()
    os.mkfifo(left / MARK, 0o600)


def has_a_directory_for_a_mark(left: Path) -> None:
    (left / MARK).unlink()
    (left / MARK).mkdir(0o700)


def has_another_name(left: Path) -> None:
    left.rename(left.with_name("mine"))


def is_a_link(left: Path) -> None:
    left.rename(left.with_name("mine"))
    left.symlink_to("mine")


def is_a_file(left: Path) -> None:
    left.rename(left.with_name("mine"))
    left.write_text("")


@pytest.mark.parametrize(
    "otherwise",
    [
        belongs_to_another_user,
        lets_others_in,
        has_no_mark,
        has_an_empty_mark,
        has_another_boots_mark,
        has_another_networks_mark,
        has_another_users_mark,
        has_a_mark_that_others_may_write,
        has_a_link_for_a_mark,
        has_a_fifo_for_a_mark,
        has_a_directory_for_a_mark,
        has_another_name,
        is_a_link,
        is_a_file,
    ],
)
def test_a_directory_that_may_not_be_a_dead_nodes_own_stays(tmp_path: Path, otherwise: Callable[[Path], None]) -> None:
    otherwise(abandoned(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    assert remove_abandoned(parent=tmp_path) == []
    assert sorted(tmp_path.rglob("*")) == before


def test_no_link_is_followed_out_of_it(tmp_path: Path) -> None:
    outside = directory(tmp_path, "outside")
    (outside / "precious").write_text("mine")
    left = abandoned(tmp_path)
    (left / "round_1" / "link").symlink_to(outside)
    (left / "link").symlink_to(outside / "precious")
    assert remove_abandoned(parent=tmp_path) == [left]
    assert (outside / "precious").read_text() == "mine"


REMOVES = """
import sys
from pathlib import Path
from elastic_core.agent.directories import remove_abandoned
sys.stdin.readline()
while removed := remove_abandoned(parent=Path(sys.argv[1])):
    print(*removed, sep="\\n")
"""


def test_agents_that_begin_at_once_remove_each_directory_once(tmp_path: Path) -> None:
    left = [str(abandoned(tmp_path, f"elastic_{n}")) for n in range(5 * REMOVED_MAX)]
    command = [sys.executable, "-c", REMOVES, str(tmp_path)]
    agents = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for agent in agents:
        assert agent.stdin is not None
        agent.stdin.write("go\n")
        agent.stdin.flush()
    removed = [line for agent in agents for line in agent.communicate()[0].splitlines()]
    assert [agent.returncode for agent in agents] == [0] * 4
    assert sorted({*removed}) == sorted(left)
    assert len(removed) == len(left)
    assert [*tmp_path.iterdir()] == []


def test_one_agent_looks_at_some_and_removes_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(2 * REMOVED_MAX):
        abandoned(tmp_path, f"elastic_{n}")
    assert len(remove_abandoned(parent=tmp_path)) == REMOVED_MAX
    monkeypatch.setattr(directories, "ENTRIES_MAX", 0)
    assert remove_abandoned(parent=tmp_path) == []


def test_a_directory_for_temporary_files_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    assert remove_abandoned(parent=tmp_path / "missing") == []
