"""Temporary directories that killed agents have left: which are removed, and which are not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from elastic_core.agent.directories import MARK, Slot, marked
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.events import Event, Level
from elastic_core.gates import JoinedRun
from elastic_core.host.identity import boot_id, network_id
from elastic_core.protocol.roster import NodeInfo
from elastic_core.protocol.settings import Versions
from elastic_operate import abandoned_directories
from elastic_operate.abandoned_directories import REMOVED_MAX, remove_abandoned
from elastic_operate.plugin import JobFiles

NOBODY = 65534
NODE = NodeInfo(
    node_id="me", host="here", host_id="h", slot=0, local_world_size=1, role="default", versions=Versions(python="3.11")
)


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
    assert remove_abandoned([tmp_path]) == [left]
    assert [*tmp_path.iterdir()] == []


def test_the_directory_of_a_living_node_stays_until_the_last_copy_of_its_slot_is_closed(
    tmp_path: Path, slot: Slot
) -> None:
    left = directory(tmp_path)
    holder = subprocess.Popen(["sleep", "1000"], pass_fds=[slot.fileno()])
    try:
        left_marked = marked(left, slot.name)
        left_marked.__enter__()
        assert remove_abandoned([tmp_path]) == []
        slot.close()
        assert remove_abandoned([tmp_path]) == [], "a process that the node has started lives"
    finally:
        holder.kill()
        holder.wait()
    assert remove_abandoned([tmp_path]) == [left]


def test_an_agent_that_is_started_again_removes_the_directory_of_its_former_life(tmp_path: Path, slot: Slot) -> None:
    """It looks before it takes the slot that its former life had: a container that is restarted, under one job id."""
    left = abandoned(tmp_path, text=f"{boot_id()} {network_id()}\n{slot.name}")
    assert remove_abandoned([tmp_path]) == []
    slot.close()
    assert remove_abandoned([tmp_path]) == [left]


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
    assert remove_abandoned([tmp_path]) == []
    assert sorted(tmp_path.rglob("*")) == before


def test_no_link_is_followed_out_of_it(tmp_path: Path) -> None:
    outside = directory(tmp_path, "outside")
    (outside / "precious").write_text("mine")
    left = abandoned(tmp_path)
    (left / "round_1" / "link").symlink_to(outside)
    (left / "link").symlink_to(outside / "precious")
    assert remove_abandoned([tmp_path]) == [left]
    assert (outside / "precious").read_text() == "mine"


REMOVES = """
import sys
from pathlib import Path
from elastic_operate.abandoned_directories import remove_abandoned
sys.stdin.readline()
while removed := remove_abandoned([Path(sys.argv[1])]):
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
    assert len(remove_abandoned([tmp_path])) == REMOVED_MAX
    monkeypatch.setattr(abandoned_directories, "ENTRIES_MAX", 0)
    assert remove_abandoned([tmp_path]) == []


def test_a_directory_for_temporary_files_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    assert remove_abandoned([tmp_path / "missing"]) == []


def test_the_plugin_removes_them_before_a_launch_and_reports_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    left, plugin, events = abandoned(tmp_path), JobFiles(), list[Event]()
    plugin.elastic_configure()
    assert [*tmp_path.iterdir()] == []
    config = RunConfig(program=Program(ProgramKind.SCRIPT, "train.py"))
    run = JoinedRun(config=config, run_uid="run", look=pytest.fail, node=NODE, publish=events.append)
    for _ in "once", "as another node":
        plugin.elastic_run_starts(run)
        plugin.elastic_run_ends()
    message = f"removed {left}, which a killed agent has left"
    assert events == [Event("directory_removed", message, Level.DEBUG)]
