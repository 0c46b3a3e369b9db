"""The error of a command for a job whose agent does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.exit_codes import ExitCode
from elastic_core.plugins import LocalBackend, MemoryStore
from elastic_core.rendezvous import RendezvousBackend, RendezvousOptions, RendezvousParameters
from elastic_operate import host_jobs
from elastic_operate.host_jobs import SilentAgentError
from elastic_operate.job_file import describe_agent, keep
from elastic_operate.job_store import STORE_FLAGS, NoStoreError, open_store

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


def open_job(name: str | None = None, **named: str) -> tuple[RendezvousBackend, str]:
    """Return the store and the job that the command gets."""
    given = {"rdzv_backend": None, "rdzv_endpoint": "", "rdzv_id": name, "rdzv_conf": "", "plugin": (), **named}
    assert {flag.name for flag in STORE_FLAGS} == given.keys()
    with open_store(given) as found:
        return found


@pytest.mark.parametrize(("job", "named"), [(None, ""), ("other", " 'other'")])
def test_a_job_that_is_not_found_is_said_to_be(job: str | None, named: str) -> None:
    with pytest.raises(NoStoreError) as missing:
        open_job(job)
    assert missing.value.message == f"No running job{named} of this user was found on this host."
    assert missing.value.hint == "Name the job's store: --rdzv_backend, --rdzv_endpoint and --rdzv_id."


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("silent", [("redis", "redis://host:1")], indirect=True)
def test_a_named_store_is_not_looked_for() -> None:
    with pytest.raises(NoStoreError, match="The local backend serves one node") as refused:
        open_job("jo", rdzv_backend="local")
    assert refused.value.job == "jo"


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("silent", [("local", "")], indirect=True)
def test_a_standalone_job_has_no_store_and_is_known_by_its_whole_id() -> None:
    with pytest.raises(NoStoreError, match="does not answer") as refused:
        open_job("jo")
    assert (refused.value.job, refused.value.hint) == ("job42", "See its output, or wait.")


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("silent", [("redis", "redis://user:hidden@host:1")], indirect=True)
def test_a_store_with_a_password_has_to_be_named() -> None:
    with pytest.raises(SilentAgentError, match="does not answer") as refused:
        open_job("jo")
    assert refused.value.exit_code == ExitCode.UNREACHABLE
    assert str(refused.value.hint).startswith("Name the job's store with its password: ")


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("silent", [("redis", "redis://host:1")], indirect=True)
def test_a_store_that_the_file_names_is_used_and_the_agent_is_said_not_to_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RendezvousParameters] = []

    def load_backend(name: str, named: object) -> SimpleNamespace:
        assert name == "redis"
        return SimpleNamespace(rendezvous_options=RendezvousOptions, make_rendezvous=make)

    def make(parameters: RendezvousParameters) -> LocalBackend:
        made.append(parameters)
        return LocalBackend(MemoryStore())

    monkeypatch.setattr("elastic_core.plugins.manager.load_backend", load_backend)
    assert open_job("jo")[1] == "job42"
    assert [(each.backend, each.endpoint, each.run_id) for each in made] == [("redis", "redis://host:1", "job42")]
    assert capsys.readouterr().err.startswith("elastic: The agent of job 'job42' with pid ")
