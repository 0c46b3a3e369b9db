"""SIGQUIT and the thread that answers it, in this process and in real ones."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from elastic_core.agent.status import SIGNAL, StateDump, indent_stacks

PATIENCE = 30.0


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
    try:
        with closing(StateDump((), describe, writing)) as dump:
            yield dump, reading
    finally:
        os.close(reading)
        os.close(writing)


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
            dump.show(lambda: f"newer {next(numbers)}\n")
        name = "newer" if shown else "state"
        for number in range(2):
            signal.raise_signal(SIGNAL)
            text = read_until(reading, "in test_each_signal_has_its_answer")
            assert text.startswith(f"{name} {number}\n")
            assert "  Current thread MainThread (most recent call first):\n" in text


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
    with dumped() as (dump, _):
        dump.show(lambda: "never\n")
        signal.raise_signal(SIGNAL)
    signal.raise_signal(SIGNAL)
    assert heard == [SIGNAL, SIGNAL]


def test_a_node_that_leaves_on_the_signal_does_not_answer_it() -> None:
    with closing(StateDump({SIGNAL}, str)):
        assert signal.getsignal(SIGNAL) is signal.SIG_DFL


def test_stacks_have_the_names_of_their_threads_and_nothing_that_a_terminal_obeys() -> None:
    known = f"Thread 0x{threading.get_ident():016x} (most recent call first):"
    assert indent_stacks(f"{known}\nThread 0x00000000000000aa (most\n\x1b[2J") == (
        "  Thread of this dump (most recent call first):\n  Thread 0x00000000000000aa (most\n  \\x1b[2J\n"
    )
