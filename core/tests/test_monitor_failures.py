"""The protection of a round from its monitors: exceptions, floods, and lines of any form."""

from __future__ import annotations

import signal
import subprocess
import threading
from pathlib import Path

import pytest

from elastic_core.events import Event
from elastic_core.monitors import (
    EXPLANATION_MAX_CHARACTERS,
    LINE_MAX_BYTES,
    NOTE_MAX_CHARACTERS,
    NOTES_MAX,
    LineReader,
    OutputReader,
    PlannedStop,
    RunningRound,
)
from elastic_core.progress import Checkpoint, Progress


@pytest.fixture
def published() -> list[Event]:
    return []


@pytest.fixture
def running(published: list[Event]) -> RunningRound:
    return RunningRound(1, "run", ["a"], Path(), publish=published.append)


class Broken(OutputReader):
    def feed(self, data: bytes) -> None:
        raise OSError("no")


def broken(*_: object) -> None:
    raise ValueError("a defect")


def test_a_monitor_that_raises_is_published_once_and_called_no_more(
    running: RunningRound, published: list[Event]
) -> None:
    seen: list[int] = []
    running.follow_progress(broken)
    running.follow_progress(lambda rank, progress: seen.append(rank))
    for _ in range(3):
        running.progress.observe(5, Progress(step=1))
    assert seen == [5, 5, 5]
    assert [event.name for event in published] == ["plugin_failed"]
    assert "ValueError: a defect" in published[0].message


def test_no_exception_of_a_monitor_reaches_the_agent(running: RunningRound, published: list[Event]) -> None:
    running.look_last(broken)
    running.read_output(broken)
    running.answer_snapshot(broken)
    running.serve("keep", lambda packet, descriptors: str(1 // len(descriptors)))
    [look] = running.callbacks.last_looks
    assert look(PlannedStop(30.0, 5.0)) is None
    assert running.callbacks.find_snapshot() is None
    assert running.callbacks.obey({"type": "keep"}, [])
    assert running.readers.open(0) == []
    assert len(published) == 4
    assert running.readers.open(0) == []
    assert (look(PlannedStop(30.0, 5.0)), running.callbacks.find_snapshot()) == (None, None)
    assert running.callbacks.obey({"type": "keep"}, [])
    assert len(published) == 4, "each is called no more"


def test_a_reader_that_raises_gets_no_more_of_its_stream(running: RunningRound, published: list[Event]) -> None:
    lines: list[str] = []
    running.read_output(lambda rank: Broken())
    running.read_output(lambda rank: LineReader(lines.append))
    for reader in running.readers.open(0):
        reader.feed(b"one\n")
        reader.feed(b"two\n")
        reader.finish()
    assert lines == ["one", "two"]
    assert [event.name for event in published] == ["output_unread"]


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"one\ntw", b"o\n"], ["one", "two"]),
        ([b"\r10%\r20%", b"\n\nend"], ["10%", "20%", "end"]),
        ([b"\xff\n"], ["\ufffd"]),
        ([b"x" * (LINE_MAX_BYTES + 10), b"\n"], ["x" * LINE_MAX_BYTES]),
    ],
)
def test_lines_are_cut_out_of_chunks(chunks: list[bytes], lines: list[str]) -> None:
    found: list[str] = []
    reader = LineReader(found.append)
    for chunk in chunks:
        reader.feed(chunk)
    reader.finish()
    assert found == lines


def test_notes_and_explanations_are_limited(running: RunningRound) -> None:
    for number in range(NOTES_MAX):
        running.note(f"n{number}", "1")
    running.note("n0", "2")
    with pytest.raises(ValueError, match="at most"):
        running.note("another", "1")
    with pytest.raises(ValueError, match="at most"):
        running.note("n0", "x" * NOTE_MAX_CHARACTERS)
    for number in range(9):
        running.explain(str(number) * 10_000)
    assert running.explanations == ["7" * EXPLANATION_MAX_CHARACTERS, "8" * EXPLANATION_MAX_CHARACTERS], "the newest"


def test_a_follower_may_ask_for_progress_while_a_reader_reports_it(running: RunningRound) -> None:
    class Reporting(OutputReader):
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def feed(self, data: bytes) -> None:
            with self.lock:
                running.report(0, Progress(step=3))

        def catch_up(self) -> None:
            with self.lock:
                pass

    found: list[object] = []
    running.progress.begin(1)
    running.progress.catch_up = running.readers.catch_up
    running.read_output(lambda rank: Reporting())
    running.follow_progress(lambda rank, progress: found.append(running.newest_progress()[0][0]))
    for reader in running.readers.open(0):
        reader.feed(b"x")
    assert found == [Progress(step=3)]


def test_a_closed_round_changes_nothing(running: RunningRound) -> None:
    running.closed.set()
    running.follow_progress(broken)
    with subprocess.Popen(["sleep", "1000"]) as process:
        running.signal(process.pid, signal.SIGKILL, "no reason")
        assert process.poll() is None
        process.kill()
    running.progress.begin(2)
    running.report_checkpoint(Checkpoint(5))
    assert (running.progress.followers, running.progress.last_checkpoint()) == ([], None)
