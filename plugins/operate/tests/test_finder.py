"""The error of a command for a job whose agent does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_core.cli.job_store import NoStoreError
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.exit_codes import ExitCode
from elastic_core.rendezvous.backend import FoundJob
from elastic_operate import host_jobs
from elastic_operate.finder import elastic_find_job
from elastic_operate.host_jobs import SilentAgentError
from elastic_operate.job_file import describe_agent, keep

CONFIG = RunConfig(program=Program(ProgramKind.SCRIPT, "train.py"), rdzv_id="job42")


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(host_jobs, "HELLO_SECONDS", 0.01)
    return tmp_path / "elastic"


@pytest.fixture
def silent(request: pytest.FixtureRequest, runtime: Path) -> Iterator[None]:
    backend, endpoint = request.param
    config = replace(CONFIG, rdzv_backend=backend, rdzv_endpoint=endpoint)
    with keep(describe_agent(config, "run", "node", None), str(runtime)):
        yield


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("silent", [("local", "")], indirect=True)
def test_a_standalone_job_has_no_store_and_is_known_by_its_whole_id() -> None:
    with pytest.raises(NoStoreError, match="does not answer") as refused:
        elastic_find_job("jo")
    assert (refused.value.job, refused.value.hint) == ("job42", "See its output, or wait.")


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("silent", [("redis", "redis://user:hidden@host:1")], indirect=True)
def test_a_store_with_a_password_has_to_be_named() -> None:
    with pytest.raises(SilentAgentError, match="does not answer") as refused:
        elastic_find_job("jo")
    assert refused.value.exit_code == ExitCode.UNREACHABLE
    assert str(refused.value.hint).startswith("Name the job's store with its password: ")


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("silent", [("redis", "redis://host:1")], indirect=True)
def test_a_store_that_the_file_names_is_used_and_the_agent_is_said_not_to_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert elastic_find_job("jo") == FoundJob("job42", "redis", "redis://host:1")
    assert capsys.readouterr().err.startswith("elastic: The agent of job 'job42' with pid ")
