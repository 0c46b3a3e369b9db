from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import pytest

from elastic_core.config.run import Flags
from elastic_core.errors import RendezvousConnectionError
from elastic_core.exit_codes import ExitCode
from elastic_core.rendezvous.options import RendezvousOptions
from elastic_doctor.command import SEVERAL, subject_of
from elastic_doctor.examination import Report, Step, Subject, bounded_conf, examine, trial_id
from elastic_doctor.findings import OF_STORE, Finding, State, as_json, line, summary, title

Install = Callable[..., None]
FAKE = """
    from elastic_core import RendezvousConnectionError, RendezvousOptions, RendezvousStateError, hookimpl
    from elastic_core.plugins.local_backend import LocalBackend, MemoryStore

    jobs = {}
    fails_at = ""

    class Backend(LocalBackend):
        def __init__(self, job):
            super().__init__(jobs.setdefault(job, MemoryStore()))
            self.job = job

        def connect(self):
            return Backend(self.job)

        def append(self, prev, entry, data):
            if fails_at == "append":
                raise RendezvousConnectionError("The disk is full.", hint="Make room.")
            return super().append(prev, entry, data)

        def erase(self):
            if fails_at == "erase":
                return False
            jobs.pop(self.job, None)
            return True

    @hookimpl
    def elastic_rendezvous_options():
        return RendezvousOptions(endpoint="PLACE", conf={"connect_timeout": "seconds"}, embedded=fails_at == "refused")

    @hookimpl
    def elastic_make_rendezvous(params):
        if fails_at == "connect":
            raise RendezvousConnectionError("WRONGPASS for password=s3cret", hint="Check it.")
        if fails_at == "refused":
            raise RendezvousConnectionError("Nobody listens.") from ConnectionRefusedError()
        return Backend(params.run_id)
"""


class Heard:
    """The messages of an examination."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.leaves: list[bool] = []

    def send(self, message: Step | Finding) -> None:
        if isinstance(message, Finding):
            self.findings.append(message)
            return
        assert message.limit > 0
        if message.leaves is not (self.leaves or [False])[-1]:
            self.leaves.append(message.leaves)

    @property
    def states(self) -> dict[str, State]:
        return {finding.name: finding.state for finding in self.findings}

    def __getitem__(self, name: str) -> Finding:
        [finding] = [finding for finding in self.findings if finding.name == name]
        return finding


def examined(subject: Subject) -> Heard:
    heard = Heard()
    examine(subject, Report(heard.send))
    return heard


@pytest.fixture
def fake(install: Install) -> Callable[[str], Heard]:
    """Examines a backend that fails at some point."""
    install("dist", {"elastic.rendezvous": {"fake": "fake_backend"}}, {"fake_backend": FAKE})

    def examined_failing(at: str) -> Heard:
        import fake_backend  # type: ignore[import-not-found]  # it is made for this test

        fake_backend.fails_at = at
        heard = examined(subject_of(Flags(rdzv_backend="fake", rdzv_endpoint="here", nnodes=SEVERAL)))
        if at != "erase":
            assert fake_backend.jobs == {}, "nothing is left"
        return heard

    return examined_failing


def test_a_store_that_works_is_tried_in_full(fake: Callable[[str], Heard]) -> None:
    heard = fake("")
    of_store = [finding.name for finding in heard.findings if finding.name in (*OF_STORE, "traces")]
    assert of_store == [*OF_STORE, "traces"]
    assert {heard.states[name] for name in of_store} == {State.OK}
    assert heard.leaves == [True, False]
    assert heard["heartbeat time"].measured.keys() == {"median_ms", "worst_ms", "count"}
    assert heard["versions"].seen.count("dist 1.0") == 1


def test_checks_after_the_first_cause_are_not_tried(fake: Callable[[str], Heard]) -> None:
    heard = fake("append")
    assert heard["ledger"].seen == "append: The disk is full."
    assert heard["ledger"].exit_code == ExitCode.UNREACHABLE
    assert heard["the rest"].seen == "not tried: waiting, isolation, heartbeat time, wake-up time"
    assert heard["traces"].state is State.OK
    said = summary(heard.findings, "fake")
    assert said.startswith("Wrong: ledger: append: The disk is full.\nWhat to do: Make room.")


def test_a_store_that_does_not_let_us_in_is_told_without_the_password(fake: Callable[[str], Heard]) -> None:
    heard = fake("connect")
    assert heard["connect"].state is State.WRONG
    assert "traces" not in heard.states
    told = "\n".join([*map(line, heard.findings), as_json(heard.findings, "fake", "redis://:s3cret@host")])
    assert "s3cret" not in told
    assert json.loads(as_json(heard.findings, "fake", ""))["exit_code"] == 69


def test_before_its_first_agent_nobody_listens_for_an_embedded_store(fake: Callable[[str], Heard]) -> None:
    heard = fake("refused")
    assert heard["connect"].state is State.WARNING
    assert summary(heard.findings, "fake").startswith("Nothing is wrong as far as it could be tried over fake")


def test_keys_that_a_backend_cannot_delete_are_named(fake: Callable[[str], Heard]) -> None:
    traces = fake("erase")["traces"]
    assert traces.state is State.WARNING
    assert "none-doctor-" in traces.seen


def test_a_handler_of_others_says_what_cannot_be_tried(install: Install) -> None:
    module = "def make():\n    raise AssertionError('nothing is made')\n"
    install("dist", {"torchrun.handlers": {"theirs": "their_handler:offered"}}, {"their_handler": HANDLER + module})
    heard = examined(subject_of(Flags(rdzv_backend="theirs", rdzv_endpoint="127.0.0.1:1", nnodes=SEVERAL)))
    assert heard["listener"].state is State.WARNING
    assert heard["store"].state is State.SKIPPED
    assert all(name in heard["store"].seen for name in OF_STORE)


HANDLER = """
def offered():
    return lambda parameters: make()

"""


def test_a_backend_whose_torch_cannot_be_imported_is_not_tried(
    install: Install, monkeypatch: pytest.MonkeyPatch, fake: Callable[[str], Heard]
) -> None:
    from dataclasses import replace

    monkeypatch.setitem(sys.modules, "torch", None)
    subject = subject_of(Flags(rdzv_backend="fake", rdzv_endpoint="here", nnodes=SEVERAL))
    heard = examined(replace(subject, needs_torch=True))
    assert (heard["torch"].state, heard["torch"].exit_code) == (State.WRONG, ExitCode.USAGE)
    assert heard["store"].state is State.SKIPPED


def test_the_files_store_is_as_it_was(tmp_path: Path) -> None:
    endpoint = tmp_path / "rdzv"
    heard = examined(subject_of(Flags(rdzv_backend="file", rdzv_endpoint=str(endpoint), nnodes=SEVERAL)))
    assert heard["traces"].state is State.OK
    assert not endpoint.exists(), "what was made for it is gone, too"


def test_a_directory_that_others_use_stays(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    examined(subject_of(Flags(rdzv_backend="file", rdzv_endpoint=str(tmp_path), nnodes=SEVERAL)))
    assert [path.name for path in tmp_path.iterdir()] == ["job"]


@pytest.mark.parametrize(
    ("given", "bounded"),
    [
        ({}, {"connect_timeout": "2"}),
        ({"connect_timeout": "60", "other": "60"}, {"connect_timeout": "2", "other": "60"}),
        ({"connect_timeout": "1"}, {"connect_timeout": "1"}),
        ({"connect_timeout": "soon"}, {"connect_timeout": "soon"}),
    ],
)
def test_a_backend_that_can_be_told_so_is_given_less_time(given: Mapping[str, str], bounded: Mapping[str, str]) -> None:
    assert bounded_conf(given, RendezvousOptions(conf={"connect_timeout": "", "other": ""})) == bounded


def test_a_trial_has_a_job_id_of_its_own() -> None:
    assert trial_id("job42").startswith("job42-doctor-")
    assert trial_id(None) != trial_id(None)


def test_lines_wrap_under_what_was_seen() -> None:
    finding = Finding(name="connect", state=State.WRONG, seen="word " * 30, advice="do " * 30)
    lines = click.unstyle(line(finding, 80)).splitlines()
    assert len(lines) > 3
    assert all(text.startswith(" " * 26) for text in lines[1:])
    assert all(len(text) <= 80 for text in lines[1:])
    assert "\n" not in line(Finding(name="connect", state=State.OK, seen="word " * 30))


def test_foreign_words_do_not_reach_the_terminal_as_commands() -> None:
    finding = Finding(name="connect", state=State.WRONG, seen="\x1b[2J", exit_code=RendezvousConnectionError.exit_code)
    assert "\\x1b[2J" in line(finding)
    assert "\x1b[2J" not in summary([finding], "redis")


def test_a_report_shows_no_password_whatever_it_is_made_of() -> None:
    endpoint = "redis://user:s3 cr,et@host:1"
    assert "redis://***@host:1" in title("redis", endpoint, "here")
    assert '"redis://***@host:1"' in as_json([], "redis", endpoint)
