from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pytest

from elastic_core import errors
from elastic_core.errors import ElasticError, UsageError, did_you_mean, how_to_install
from elastic_core.exit_codes import ExitCode


def test_an_error_shows_its_message_and_then_its_hint() -> None:
    assert str(UsageError("--nnodes 'x' is wrong.")) == "--nnodes 'x' is wrong."
    assert (
        str(UsageError("--nnodes 'x' is wrong.", hint="Write a number.")) == "--nnodes 'x' is wrong.\nWrite a number."
    )


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("ElasticError", ExitCode.JOB_FAILED),
        ("UsageError", ExitCode.USAGE),
        ("PluginError", ExitCode.USAGE),
        ("ResourceError", ExitCode.WITHDRAWN),
        ("UnhealthyNodeError", ExitCode.UNHEALTHY),
        ("RendezvousError", ExitCode.UNREACHABLE),
        ("RendezvousClosedError", ExitCode.REFUSED),
        ("RendezvousTimeoutError", ExitCode.TOO_FEW_NODES),
        ("RendezvousConnectionError", ExitCode.UNREACHABLE),
        ("RendezvousStateError", ExitCode.REFUSED),
        ("RendezvousRefusedError", ExitCode.REFUSED),
        ("StoreLostError", ExitCode.STORE_LOST),
    ],
)
def test_every_error_ends_a_run_with_its_own_code(name: str, code: ExitCode) -> None:
    assert getattr(errors, name).exit_code == code


def test_the_table_above_leaves_no_error_out() -> None:
    classes = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ElasticError)}
    assert len(classes) == 12


@pytest.mark.parametrize(
    ("wrong", "suggestion"),
    [("redsi", " Did you mean 'redis'?"), ("fiel", " Did you mean 'file'?"), ("nothing like it", "")],
)
def test_the_nearest_known_word_is_suggested(wrong: str, suggestion: str) -> None:
    assert did_you_mean(wrong, ["local", "file", "redis"]) == suggestion


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (UsageError("'x' is no port.", hint="Give a number."), "'x' is no port. Give a number."),
        (OSError("disk full"), "OSError: disk full."),
    ],
)
def test_an_exception_of_a_plugin_is_quoted_in_one_line(raised: Exception, line: str) -> None:
    assert errors.in_one_line(raised) == line


@pytest.mark.parametrize(
    ("quoted", "shown"),
    [
        ("--rdzv_endpoint 'redis://u:s3cret@host:1' is wrong.", "--rdzv_endpoint 'redis://***@host:1' is wrong."),
        ("--rdzv_endpoint 'rediss://:s3/c@ret@host'.", "--rdzv_endpoint 'rediss://***@host'."),
        ("--rdzv_endpoint 'redis://u:s3 cr,et@host:1': no.", "--rdzv_endpoint 'redis://***@host:1': no."),
        ("redis://:s3c re't@host:1", "redis://***@host:1"),
        ("No etcd answers: http://a:1: refused; 'b' hung up.", "No etcd answers: http://a:1: refused; 'b' hung up."),
        ("--rdzv_conf 'password=s3cret': no.", "--rdzv_conf 'password=***': no."),
        ("--rdzv_conf 'a=1,passwrd=s3cret,b=2' gives.", "--rdzv_conf 'a=1,passwrd=***,b=2' gives."),
        ("--rdzv_conf password=s3cret has no effect.", "--rdzv_conf password=*** has no effect."),
        ("Write password_file=FILE.", "Write password_file=FILE."),
        ("Write file:///DIRECTORY, or a password: none.", "Write file:///DIRECTORY, or a password: none."),
    ],
)
def test_no_error_shows_a_password_that_it_quotes(quoted: str, shown: str) -> None:
    for error in (UsageError(quoted), UsageError("Wrong.", hint=quoted)):
        assert "s3" not in repr(error) + str(error)
    assert str(UsageError(quoted)) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("user:secret@host/db", "***@host/db"),
        (":secret@host:6379", "***@host:6379"),
        ("at u:s/e@c:ret@host, and on", "at ***@host, and on"),
        ("--rdzv_endpoint 'user:se cret@host' is none", "--rdzv_endpoint '***@host' is none"),
        ("one:secret@a:1,two:secret@b:2", "***@b:2"),
        ("redis://user:secret@host:6379", "redis://***@host:6379"),
    ],
)
def test_a_password_of_an_endpoint_is_not_shown_whether_it_has_a_scheme_or_not(text: str, shown: str) -> None:
    assert errors.without_passwords(text) == shown
    assert str(UsageError(text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1:29400 does not answer",
        "[fd00::1]:29400: no answer",
        "rank 1 on host: exit code 1, at 10:46 by someone@example.com",
        "file:///shared/job",
        "Raised at /a/b.py:12.",
    ],
)
def test_an_address_without_a_password_is_shown_as_it_is(text: str) -> None:
    assert errors.without_passwords(text) == text


class Installed(metadata.Distribution):
    """elastic-core 0.1.0, installed from somewhere."""

    def __init__(self, origin: Mapping[str, object] | None) -> None:
        self._files = {"METADATA": "Name: elastic-core\nVersion: 0.1.0\n"}
        if origin is not None:
            self._files["direct_url.json"] = json.dumps(origin)

    def read_text(self, filename: str) -> str | None:
        return self._files.get(filename)

    def locate_file(self, path: object) -> Path:
        raise NotImplementedError


def hint_where(monkeypatch: pytest.MonkeyPatch, origin: Mapping[str, object] | None, distribution: str) -> str:
    monkeypatch.setattr(metadata, "distribution", lambda _: Installed(origin))
    return how_to_install(distribution)


@pytest.mark.parametrize("editable", [False, True])
def test_a_checkout_installs_from_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, editable: bool) -> None:
    plugin = tmp_path / "my work" / "plugins" / "etcd"
    plugin.mkdir(parents=True)
    origin = {"url": (tmp_path / "my work" / "core").as_uri(), "dir_info": {"editable": editable}}
    told = hint_where(monkeypatch, origin, "elastic-rdzv-etcd")
    assert told == f"Install elastic-rdzv-etcd:\n  pip install '{plugin}'"


def test_a_wheel_is_beside_the_wheel_of_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "elastic_torch-0.1.0-py3-none-any.whl"
    wheel.touch()
    origin = {"url": (tmp_path / "elastic_core-0.1.0-py3-none-any.whl").as_uri(), "archive_info": {}}
    assert hint_where(monkeypatch, origin, "elastic-torch") == f"Install elastic-torch:\n  pip install {wheel}"
    served = {"url": "https://host/wheels/elastic_core-0.1.0-py3-none-any.whl", "archive_info": {}}
    assert hint_where(monkeypatch, served, "elastic-torch").endswith(f"pip install https://host/wheels/{wheel.name}")


def test_a_repository_installs_from_the_same_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    origin = {"url": "https://host/a/elastic.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}
    told = hint_where(monkeypatch, {**origin, "subdirectory": "core"}, "elastic-rdzv-etcd")
    source = "git+https://host/a/elastic.git@c0ffee#subdirectory=plugins/etcd"
    assert told == f"Install elastic-rdzv-etcd:\n  pip install '{source}'"


@pytest.mark.parametrize("origin", [None, {"url": "file:///gone/core", "dir_info": {}}])
def test_a_distribution_that_is_not_beside_core_is_not_looked_for_on_the_public_index(
    monkeypatch: pytest.MonkeyPatch, origin: Mapping[str, object] | None
) -> None:
    assert hint_where(monkeypatch, origin, "elastic-rdzv-etcd") == (
        "Install elastic_rdzv_etcd-0.1.0-py3-none-any.whl from where elastic-core came; the public index has no "
        "elastic-rdzv-etcd of this project."
    )


def test_a_distribution_is_installed_together_with_those_that_it_requires(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, slurm = (tmp_path / "plugins" / name for name in ("file", "slurm"))
    slurm.mkdir(parents=True)
    origin = {"url": (tmp_path / "core").as_uri(), "dir_info": {}}
    assert "elastic_rdzv_file-0.1.0-py3-none-any.whl and elastic_slurm-0.1.0" in hint_where(
        monkeypatch, origin, "elastic-slurm"
    )
    file.mkdir()
    told = hint_where(monkeypatch, origin, "elastic-slurm")
    assert told == f"Install elastic-slurm:\n  pip install {file} {slurm}"


def test_core_on_a_path_alone_has_no_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata.Distribution, "discover", lambda **_: iter(()))
    assert how_to_install("elastic-torch") == "Install elastic-torch from where elastic_core came."
