"""The process of an examination: whatever it does, its end is reported, and it leaves nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from elastic_core.config.run import Flags
from elastic_core.errors import RendezvousStateError
from elastic_core.exit_codes import ExitCode
from elastic_doctor import runner
from elastic_doctor.command import SEVERAL, subject_of
from elastic_doctor.examination import Report, Subject
from elastic_doctor.findings import Finding, State, ok
from elastic_doctor.runner import Signalled, examine_in_process


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    return subject_of(Flags(rdzv_backend="file", rdzv_endpoint=str(tmp_path), nnodes=SEVERAL))


def hangs(subject: Subject, report: Report) -> None:
    report.send(ok("first", "there"))
    report.at("second", "a question", 0.0)
    threading.Event().wait()


def works_hard(subject: Subject, report: Report) -> None:
    report.at("first", "", 0.0)
    for number in range(3_000_000):
        hash(number)
    report.send(ok("first", "done"))


def dies(subject: Subject, report: Report) -> None:
    report.at("first", "a step", 60.0)
    os.kill(os.getpid(), signal.SIGKILL)


def exits(subject: Subject, report: Report) -> None:
    report.at("first", "a step", 60.0)
    os._exit(0)  # as a client library may


def leaves_a_thread(subject: Subject, report: Report) -> None:
    report.at("first", "a step", 0.0)
    threading.Thread(target=threading.Event().wait).start()
    report.send(ok("first", "done"))


def raises(subject: Subject, report: Report) -> None:
    raise ZeroDivisionError("division by zero")


def refuses(subject: Subject, report: Report) -> None:
    raise RendezvousStateError("Two heads.", hint="Take one off.")


def leaves_and(then: Callable[[], object], limit: float = 0.0) -> runner.Examine:
    """It has written when it does that, for which it has ``limit`` seconds."""

    def body(subject: Subject, report: Report) -> None:
        store = subject.plugins.make_rendezvous(subject.params)
        report.leaves = True
        report.at("roster", "enter", 60.0)
        store.enter("node", b"left behind")
        report.send(ok("roster", "written"))
        report.at("ledger", "append", limit)
        then()

    return body


def test_a_check_that_hangs_is_reported_with_its_last_step(subject: Subject) -> None:
    first, second = examine_in_process(subject, hangs)
    assert first == ok("first", "there")
    assert (second.name, second.state, second.exit_code) == ("second", State.WRONG, ExitCode.UNREACHABLE)
    assert second.seen.startswith("a question: nothing that the backend understands has come back within")


def test_a_busy_check_does_not_hang(subject: Subject) -> None:
    assert list(examine_in_process(subject, works_hard)) == [ok("first", "done")]


def test_a_late_look_is_no_long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher that did not run for a minute does not know that the other was idle through it."""
    monkeypatch.setattr(runner._Waited, "_work", lambda _: ("7", "1"))
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    waited = runner._Waited(os.getpid())
    now += 60.0
    assert 0.0 < waited.seconds() < 1.0


def test_a_process_that_dies_is_told(subject: Subject) -> None:
    [finding] = examine_in_process(subject, dies)
    assert (finding.name, finding.exit_code) == ("first", ExitCode.INTERNAL)
    assert finding.seen == "the process that tried it is gone, with exit code -9, at a step"


def test_a_process_that_ends_in_the_middle_without_an_error_is_told_too(subject: Subject) -> None:
    [finding] = examine_in_process(subject, exits)
    assert finding.state is State.WRONG
    assert "exit code 0, at a step" in finding.seen


def test_a_thread_that_a_library_leaves_at_the_end_is_no_hang(subject: Subject) -> None:
    assert [*examine_in_process(subject, leaves_a_thread)] == [ok("first", "done")]


def test_a_defect_has_its_traceback(subject: Subject, capfd: pytest.CaptureFixture[str]) -> None:
    [finding] = examine_in_process(subject, raises)
    assert (finding.seen, finding.exit_code) == ("ZeroDivisionError: division by zero.", ExitCode.INTERNAL)
    assert "Traceback" in capfd.readouterr().err


def test_an_error_of_ours_has_its_own_words(subject: Subject) -> None:
    [finding] = examine_in_process(subject, refuses)
    assert (finding.advice, finding.exit_code) == ("Take one off.", ExitCode.REFUSED)


def test_the_traces_of_a_check_that_hangs_are_deleted(subject: Subject) -> None:
    *_, hung, traces = examine_in_process(subject, leaves_and(threading.Event().wait))
    assert (hung.name, hung.state) == ("ledger", State.WRONG)
    assert (traces.name, traces.state) == ("traces", State.OK)
    assert list(Path(subject.params.endpoint).iterdir()) == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_at_once_and_nothing_is_left(subject: Subject, signum: signal.Signals) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    told = KeyboardInterrupt if signum is signal.SIGINT else Signalled
    try:
        with closing(examine_in_process(subject, leaves_and(threading.Event().wait, 60.0))) as findings:
            assert next(findings).name == "roster"
            with pytest.raises(told):
                _signal_and_go_on(signum, findings)
    finally:
        signal.signal(signal.SIGINT, before)
    assert list(Path(subject.params.endpoint).iterdir()) == []


def _signal_and_go_on(signum: signal.Signals, findings: Iterator[Finding]) -> None:
    """It may come while the next finding is awaited, or before."""
    os.kill(os.getpid(), signum)
    list(findings)
