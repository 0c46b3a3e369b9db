"""The parameters of the rendezvous and the requests to the file system; the run's settings come through unchanged."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_core.agent.directories import Slot, log_directory, make_log_dir
from elastic_core.agent.membership import applicant_for, parameters
from elastic_core.config.parse import OnNodeLoss, Stream, StreamMap
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig, Timing
from elastic_core.errors import UsageError
from elastic_core.host.identity import host_id, installed_versions
from elastic_core.plugins.manager import Plugins, core_plugins, failure_policies
from elastic_core.protocol.settings import Agreement, Versions
from elastic_core.rendezvous.options import RendezvousParameters
from elastic_core.session.runtime import RUNTIME, Runtime

PROGRAM = Program(ProgramKind.SCRIPT, "train.py")


def config(**fields: Any) -> RunConfig:
    return RunConfig(program=PROGRAM, **fields)


@pytest.fixture
def plugins() -> Plugins:
    plugins = Plugins()
    for name, plugin in core_plugins().items():
        plugins.register(name, plugin)
    return plugins


@pytest.fixture
def slots(tmp_path: Path) -> Iterator[list[Slot]]:
    """The first two of a job."""
    slots = [Slot.take(str(tmp_path)) for _ in range(2)]
    yield slots
    for slot in slots:
        slot.close()


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of temporary directories."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_the_backend_is_made_from_what_the_user_typed() -> None:
    asked = config(
        rdzv_backend="file",
        rdzv_endpoint="/shared/rdzv",
        rdzv_id="job7",
        min_nodes=2,
        max_nodes=4,
        local_addr="10.0.0.7",
        rdzv_conf={"poll": "1"},
    )
    assert parameters(asked) == RendezvousParameters(
        backend="file",
        endpoint="/shared/rdzv",
        run_id="job7",
        min_nodes=2,
        max_nodes=4,
        local_addr="10.0.0.7",
        config={"poll": "1"},
    )


def test_a_node_brings_its_name_its_place_and_its_size(plugins: Plugins, slots: list[Slot]) -> None:
    clock = Runtime(new_id=lambda: "n1")
    info = applicant_for(config(nproc_per_node=3, role="actor"), plugins, slots[0], clock).info
    assert (info.node_id, info.slot, info.local_world_size, info.role) == ("n1", 0, 3, "actor")
    assert (info.host, info.host_id) == (socket.gethostname(), host_id())
    assert info.versions == Versions(**installed_versions())


def test_agents_on_one_host_are_told_apart_by_their_slots(plugins: Plugins, slots: list[Slot]) -> None:
    names = [str(applicant_for(config(), plugins, slot, RUNTIME).info) for slot in slots]
    assert names == [socket.gethostname(), f"{socket.gethostname()} (agent 2)"]


def test_the_settings_that_all_nodes_must_agree_on_are_taken_from_the_run(plugins: Plugins, slots: list[Slot]) -> None:
    asked = config(
        min_nodes=2,
        max_nodes=4,
        max_restarts=5,
        on_node_loss=OnNodeLoss.FAIL,
        timing=Timing(join_timeout=7.0),
        run_uid="slurm_17_0",
        allow_version_mismatch=True,
    )
    applicant = applicant_for(asked, plugins, slots[0], RUNTIME)
    assert applicant.settings.agreement == Agreement(
        min_nodes=2,
        max_nodes=4,
        max_restarts=5,
        on_node_loss=OnNodeLoss.FAIL,
        failure_policies=failure_policies(plugins),
    )
    assert applicant.settings.timing.join_timeout == 7.0
    assert applicant.settings.host == socket.gethostname()
    assert (applicant.scheduler_uid, applicant.allow_version_mismatch) == ("slurm_17_0", True)


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("job7", "job7_run1"),
        ("../../etc", "..%2F..%2Fetc_run1"),
        ("..", ".._run1"),
        ("team/big run", "team%2Fbig%20run_run1"),
    ],
)
def test_logs_that_were_asked_for_are_kept_in_a_directory_of_the_job_and_the_run(
    tmp_path: Path, job: str, name: str
) -> None:
    directory, removed = log_directory(config(rdzv_id=job, log_dir=tmp_path / "logs"), "run1")
    assert (directory, removed) == (tmp_path / "logs" / name, False)
    assert directory.resolve().parent == tmp_path / "logs"


@pytest.mark.parametrize(
    ("streams", "removed"),
    [
        ({}, True),
        ({"redirects": StreamMap(Stream.ERR)}, False),
        ({"tee": StreamMap(Stream.NONE, {3: Stream.OUT})}, False),
        ({"tee": StreamMap(Stream.NONE, {3: Stream.NONE})}, True),
    ],
)
def test_a_temporary_directory_is_removed_unless_streams_are_kept_there(
    temporary: Path, streams: dict[str, StreamMap], removed: bool
) -> None:
    found = log_directory(config(rdzv_id="a/b", nproc_per_node=4, **streams), "run1")
    [made] = temporary.iterdir()
    assert found == (made, removed)
    assert made.name.startswith("elastic_a%2Fb_run1_")
    assert made.stat().st_mode & 0o777 == 0o700


def test_a_temporary_directory_is_kept_for_files_of_a_plugin(temporary: Path) -> None:
    directory, removed = log_directory(config(), "run1", keep=True)
    assert (directory.parent, removed) == (temporary, False)


def test_a_very_long_job_id_still_has_a_temporary_directory(temporary: Path) -> None:
    directory, _ = log_directory(config(rdzv_id="ü" * 300), "run1")
    assert directory.is_dir()


def test_the_log_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    make_log_dir(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_log_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(UsageError, match=r"--log_dir '.*/train\.py/logs' cannot be made: Not a directory\."):
        make_log_dir(tmp_path / "train.py" / "logs")
