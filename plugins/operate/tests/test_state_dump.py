"""SIGQUIT and the thread that answers it, in this process and in real ones."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_core import AgentEnd, Decision, JoinedRun
from elastic_core.config import Program, ProgramKind, RunConfig
from elastic_core.events import Event
from elastic_core.protocol import NodeInfo, Versions
from elastic_operate import decision_file
from elastic_operate.state_dump import SIGNAL, StateDump, indent_stacks

PATIENCE = 30.0
CONFIG = RunConfig(program=Program(ProgramKind.EXECUTABLE, "x"))


@pytest.fixture(autouse=True)
def default() -> Iterator[None]:
    """The usual SIGQUIT, whatever this process has inherited."""
    before = signal.signal(SIGNAL, signal.SIG_DFL)
    yield
    signal.signal(SIGNAL, before)


@contextmanager
def dumped(describe: Callable[[], str] = lambda: "the state\n") -> Iterator[tuple[StateDump, int]]:
    """A dump, and the end of a pipe at which it can be read."""
    reading, writing = os.pipe()
    dump = StateDump(writing)
    ended = threading.Event()

    def serve(reading: int) -> None:
        StateDump._serve(dump, reading)
        ended.set()

    dump.describe = describe  # type: ignore[method-assign]
    dump._serve = serve  # type: ignore[method-assign]
    dump.elastic_configure(CONFIG)
    try:
        yield dump, reading
    finally:
        dump.elastic_run_ends()
        os.close(reading)
        assert not dump._started or ended.wait(PATIENCE), "it writes to a descriptor that another test may have"
        os.close(writing)


def run(log_dir: Path | None = None) -> JoinedRun:
    versions = Versions(python="3")
    info = NodeInfo(node_id="a", host="a", host_id="a", slot=0, local_world_size=1, role="r", versions=versions)
    return JoinedRun(config=CONFIG, run_uid="run", node=info, look=pytest.fail, log_dir=log_dir)


def read_until(fd: int, what: str) -> str:
    text = ""
    while what not in text:
        assert select.select([fd], [], [], PATIENCE)[0], text
        text += os.read(fd, 65536).decode()
    return text


@pytest.mark.parametrize("shown", [False, True], ids=["before the thread is there", "after"])
def test_each_signal_has_its_answer(shown: bool) -> None:
    numbers = iter(range(10))
    with dumped(lambda: f"state {next(numbers)}\n") as (dump, reading):
        if shown:
            dump.elastic_run_starts(run())
        for number in range(2):
            signal.raise_signal(SIGNAL)
            text = read_until(reading, "in test_each_signal_has_its_answer")
            assert text.startswith(f"state {number}\n")
            assert "  Thread MainThread (most recent call first):\n" in text


AT_WORK = """
import os

from elastic_core.config import Program, ProgramKind, RunConfig
from elastic_operate.state_dump import StateDump

dump = StateDump(os.open(os.devnull, os.O_WRONLY))
dump.describe = str
dump.elastic_configure(RunConfig(program=Program(ProgramKind.EXECUTABLE, "x")))
print("ready", flush=True)
while True:
    for _ in (number for number in range(5)):
        pass
"""


def test_signals_that_meet_the_agent_at_work_do_not_end_it() -> None:
    """A handler in C, as faulthandler's, reads frames that change: within some thousand signals it ends the process."""
    with subprocess.Popen([sys.executable, "-c", AT_WORK], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(3000):
            process.send_signal(SIGNAL)
            time.sleep(0.0005)
        assert process.poll() is None
        process.kill()


def test_a_state_that_cannot_be_described_keeps_no_stacks_back() -> None:
    def describe() -> str:
        raise RuntimeError("changed")

    with dumped(describe) as (_, reading):
        signal.raise_signal(SIGNAL)
        assert "RuntimeError: changed" in read_until(reading, "in test_a_state_that_cannot")


def test_a_console_that_is_stuck_keeps_nobody_waiting() -> None:
    began, go = threading.Event(), threading.Event()

    def describe() -> str:
        began.set()
        go.wait(PATIENCE)
        return ""

    with dumped(describe) as (_, reading):
        signal.raise_signal(SIGNAL)
        assert began.wait(PATIENCE)
        for _ in range(2000):  # more than there is room for, and each of them returns
            signal.raise_signal(SIGNAL)
        go.set()
        read_until(reading, "in test_a_console_that_is_stuck")


def test_at_the_end_the_signal_is_what_it_was() -> None:
    with dumped():
        assert signal.getsignal(SIGNAL) is not signal.SIG_DFL
    assert signal.getsignal(SIGNAL) is signal.SIG_DFL
    pid = os.fork()
    if pid == 0:
        signal.raise_signal(SIGNAL)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == SIGNAL


def test_a_handler_of_the_program_stays() -> None:
    heard: list[int] = []
    signal.signal(SIGNAL, lambda signum, _: heard.append(signum))
    with dumped(pytest.fail) as (dump, _):
        dump.elastic_run_starts(run())
        signal.raise_signal(SIGNAL)
    signal.raise_signal(SIGNAL)
    assert heard == [SIGNAL, SIGNAL]


def test_a_node_that_leaves_on_the_signal_does_not_answer_it() -> None:
    StateDump().elastic_configure(replace(CONFIG, signals_to_handle=(signal.SIGTERM, SIGNAL)))
    assert signal.getsignal(SIGNAL) is signal.SIG_DFL


def test_a_run_that_ends_on_another_thread_gives_the_signal_back_and_the_next_run_takes_it() -> None:
    dump = StateDump()
    dump.elastic_configure(CONFIG)
    ending = threading.Thread(target=dump.elastic_run_ends)
    ending.start()
    ending.join()
    with dumped() as (_, reading):
        signal.raise_signal(SIGNAL)
        assert read_until(reading, "in test_a_run_that_ends").startswith("the state\n")
    assert signal.getsignal(SIGNAL) is signal.SIG_DFL
    dump.elastic_configure(CONFIG)
    ending = threading.Thread(target=dump.elastic_run_ends)
    ending.start()
    ending.join()
    pid = os.fork()
    if pid == 0:
        signal.raise_signal(SIGNAL)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == SIGNAL


@pytest.mark.parametrize("failed", [False, True])
def test_a_defect_of_the_agent_leaves_its_decisions(failed: bool, tmp_path: Path) -> None:
    events: list[Event] = []
    dump = StateDump()
    dump._run = run(tmp_path)
    dump.elastic_agent_ends(AgentEnd("a", events.append, failed=failed))
    assert [event.name for event in events] == ["decisions"] * failed
    assert [str(path) in events[0].message for path in tmp_path.iterdir()] == [True] * failed


def test_the_decisions_of_an_agent_are_one_file_and_what_cannot_be_written_leaves_none(tmp_path: Path) -> None:
    call = Decision(1.0, "step", ())
    paths = [decision_file.write([call] * times, "a", tmp_path) for times in (2, 1)]
    assert paths == [*tmp_path.iterdir()] * 2
    assert len(paths[0].read_text().splitlines()) == 2, "the header, and the call of the newest dump"
    other = tmp_path / "elastic_decisions_b.jsonl"
    other.mkdir()
    with pytest.raises(OSError, match="directory"):
        decision_file.write([call], "b", tmp_path)
    assert sorted(tmp_path.iterdir()) == [*paths[:1], other]


def test_a_disk_that_does_not_answer_holds_up_no_dump(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = threading.Event()
    monkeypatch.setattr(decision_file, "write", lambda *_: answers.wait())
    monkeypatch.setattr(decision_file, "WRITE_MAX_SECONDS", 0.05)
    try:
        assert decision_file.write_decisions(run(tmp_path)) == "not written: no answer within 0.05 s"
    finally:
        answers.set()


def test_stacks_have_the_names_of_their_threads_and_nothing_that_a_terminal_obeys() -> None:
    known = f"Thread 0x{threading.get_ident():016x} (most recent call first):"
    assert indent_stacks(f"{known}\nThread 0x00000000000000aa (most\n\x1b[2J") == (
        "  Thread of this dump (most recent call first):\n  Thread 0x00000000000000aa (most\n  \\x1b[2J\n"
    )
