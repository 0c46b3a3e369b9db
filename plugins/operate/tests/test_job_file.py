"""The files by which commands find agents: where they are, whose they are, and what is left of them."""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.protocol.schema import writer
from elastic_core.rendezvous.job_token import JobToken
from elastic_operate import job_file
from elastic_operate.job_file import (
    LAST_LOGS,
    JobFile,
    describe_agent,
    directories,
    keep,
    open_directory,
    read_all,
    read_last,
)

SECRET = "0123456789abcdef" * 2
CONFIG = RunConfig(
    program=Program(ProgramKind.SCRIPT, "train.py"),
    rdzv_id="job",
    rdzv_backend="redis",
    rdzv_endpoint="redis://user:hidden@host:1",
    rdzv_conf={"password": "hidden"},
    job_token=JobToken(SECRET.encode(), "here"),
)


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return runtime / "elastic"


@pytest.fixture
def agent() -> JobFile:
    return describe_agent(CONFIG, "run1", "node1", None)


@pytest.fixture
def listening(agent: JobFile, runtime: Path) -> Iterator[socket.socket]:
    with keep(agent, str(runtime)) as listener:
        yield listener


@pytest.mark.usefixtures("listening")
def test_the_file_holds_no_secret_and_only_its_user_reads_it(runtime: Path, agent: JobFile) -> None:
    path = runtime / "node1.json"
    assert {name: value for name, value in json.loads(path.read_text()).items() if isinstance(value, str)} == {
        "job": "job",
        "run": "run1",
        "node": "node1",
        "backend": "redis",
        "endpoint": "redis://***@host:1",
        "logs": "",
        "kernel": job_file.kernel(),
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    assert read_all() == [replace(agent, directory=str(runtime))]
    assert agent.pid == os.getpid()


def test_of_an_agent_that_has_ended_it_is_known_when_and_how(agent: JobFile, runtime: Path) -> None:
    before = time.time()
    with keep(agent, str(runtime), lambda: "the job is done"):
        assert len([*runtime.iterdir()]) == 2
        assert read_last() is None
    assert [path.name for path in runtime.iterdir()] == ["last"]
    assert (last := read_last()) is not None
    assert (last.job, last.end) == ("job", "the job is done")
    assert before <= last.ended <= time.time()
    assert read_last(LAST_LOGS) is None


def test_of_an_agent_that_was_killed_it_is_not_known_how(agent: JobFile, runtime: Path) -> None:
    with keep(replace(agent, started=1), str(runtime)):
        assert read_all() == []
        assert (last := read_last()) is not None
        assert (last.job, last.end, last.ended) == ("job", "", 0.0)


def test_the_last_agent_with_logs_is_remembered(agent: JobFile, runtime: Path, tmp_path: Path) -> None:
    for logs in ("a", "b"):
        with keep(describe_agent(CONFIG, "run", f"node-{logs}", tmp_path / logs), str(runtime)):
            pass
    with keep(agent, str(runtime)):
        pass
    last = read_last(LAST_LOGS)
    assert last is not None
    assert last.logs == str(tmp_path / "b")
    assert (last := read_last()) is not None
    assert last.node == agent.node
    assert read_all() == []


def leave(file: JobFile, runtime: Path, age: float, text: str | None = None) -> None:
    """Leave what an agent leaves that was killed so many seconds ago; ``text`` is what its release has written."""
    path = runtime / f"{file.node}.json"
    path.write_text(json.dumps(writer(JobFile)(file)) if text is None else text)
    os.utime(path, (time.time() - age,) * 2)
    path.with_suffix(".sock").touch()


def test_the_last_agent_is_the_one_that_has_ended_last(runtime: Path, tmp_path: Path) -> None:
    long, short, killed = (describe_agent(CONFIG, "run", name, tmp_path / name) for name in ("long", "short", "killed"))
    with keep(long, str(runtime)):
        with keep(short, str(runtime)):
            pass
        leave(replace(killed, started=1), runtime, age=3600)
        assert [file.node for file in read_all()] == ["long"]
        assert (last := read_last()) is not None
        assert last.node == "short"
    assert (last := read_last()) is not None
    assert last.node == "long"


@pytest.mark.parametrize("change", [{"started": 1}, {"pid": 2**22 + 1}])
def test_the_file_of_a_process_that_is_gone_is_removed(agent: JobFile, runtime: Path, change: dict[str, int]) -> None:
    with keep(replace(agent, **change), str(runtime)):  # type: ignore[arg-type]  # both fields are numbers
        assert read_all() == []
        assert [path.name for path in runtime.iterdir()] == ["last"]


def test_a_file_of_another_boot_or_container_is_neither_listed_nor_removed(agent: JobFile, runtime: Path) -> None:
    with keep(replace(agent, kernel="another 1", started=1), str(runtime)):
        assert read_all() == []
        assert len([*runtime.iterdir()]) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"job": "x"}', "null"])
@pytest.mark.usefixtures("listening")
def test_a_file_that_is_no_agents_is_passed_over(runtime: Path, text: str) -> None:
    (runtime / "other.json").write_text(text)
    assert [found.node for found in read_all()] == ["node1"]


@pytest.mark.usefixtures("listening")
def test_a_file_of_another_boot_or_release_is_removed_after_a_day(runtime: Path, agent: JobFile) -> None:
    for node, age in (("young", 3600), ("old", 100_000)):
        leave(replace(agent, node=node, kernel="another 1"), runtime, age)
        leave(replace(agent, node=f"{node}-unreadable"), runtime, age, text="{")
    assert [found.node for found in read_all()] == ["node1"]
    assert sorted({path.stem for path in runtime.iterdir()}) == ["node1", "young", "young-unreadable"]


def test_a_directory_that_others_can_write_to_is_not_used(agent: JobFile, runtime: Path) -> None:
    runtime.mkdir()
    runtime.chmod(0o777)
    with pytest.raises(OSError, match="not only this user's"), keep(agent, str(runtime)):
        pass
    assert [*runtime.iterdir()] == []
    assert read_all() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="changes an owner")
def test_a_directory_of_another_user_is_not_used(agent: JobFile, runtime: Path) -> None:
    with keep(agent, str(runtime)):
        os.chown(runtime, 54321, 54321)
        assert read_all() == []
        with pytest.raises(OSError, match="not only this user's"), open_directory(str(runtime)):
            pass
    assert [path.name for path in runtime.iterdir()] == ["last"], "its own agent has had it open"


def test_a_link_in_the_place_of_the_directory_is_not_followed(agent: JobFile, runtime: Path, tmp_path: Path) -> None:
    runtime.symlink_to(tmp_path)
    with pytest.raises(OSError, match=r"Not a directory|symbolic"), keep(agent, str(runtime)):
        pass


def test_nothing_is_left_where_the_disk_is_full(agent: JobFile, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(OSError, match="No space left"), keep(agent, str(runtime)):
        pass
    assert [*runtime.iterdir()] == []


def test_the_runtime_directory_of_another_user_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    temporary = f"{tmp_path}/elastic-{os.geteuid()}"
    assert directories() == [f"{tmp_path}/runtime/elastic", temporary]
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    assert directories() == [temporary]
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert directories(reading=False) == [temporary]
    monkeypatch.delenv("TMPDIR")
    assert directories(reading=False) == [f"/tmp/elastic-{os.geteuid()}"]
