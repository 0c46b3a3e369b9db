"""The protection of a round from its monitors: exceptions, floods, and lines of any form."""

from __future__ import annotations

import math
import signal
import subprocess
import threading
from collections.abc import Callable
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
    Shape,
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
    running.shape_console(broken)
    running.answer_snapshot(broken)
    running.serve("keep", lambda packet, descriptors: str(1 // len(descriptors)))
    [look] = running.callbacks.last_looks
    assert look(PlannedStop(30.0, 5.0)) is None
    assert running.callbacks.find_snapshot() is None
    assert running.callbacks.obey({"type": "keep"}, [])
    plain = Shape()
    assert (running.readers.open(0), running.readers.shape(plain, 0, None)) == ([], plain)
    assert len(published) == 5
    assert (running.readers.open(0), running.readers.shape(plain, 0, None)) == ([], plain)
    assert (look(PlannedStop(30.0, 5.0)), running.callbacks.find_snapshot()) == (None, None)
    assert running.callbacks.obey({"type": "keep"}, [])
    assert len(published) == 5, "each is called no more"


def test_a_reader_that_raises_gets_no_more_of_its_stream(running: RunningRound, published: list[Event]) -> None:
    lines: list[str] = []
    running.read_output(lambda *_: Broken())
    running.read_output(lambda *_: LineReader(lines.append))
    for reader in running.readers.open(0):
        reader.feed(b"one\n")
        reader.feed(b"two\n")
        reader.finish()
    assert lines == ["one", "two"]
    assert [event.name for event in published] == ["output_unread"]


class Holding(Shape):
    """Holds back all from the second line on, in capitals, until the end; one of its methods may be ``broken``."""

    def __init__(self, broken: str = "", outcome: Callable[[], object] = {}.popitem) -> None:
        self._held = b""
        if broken:
            setattr(self, broken, lambda *data: outcome())

    def feed(self, data: bytes) -> bytes:
        first, end, rest = (b"", b"", data) if self._held else data.partition(b"\n")
        self._held, self.due = self._held + rest, 0.0 if self._held + rest else math.inf
        return first + end

    def finish(self) -> bytes:
        return self._held.upper()


@pytest.mark.parametrize(
    ("shape", "shown", "events"),
    [
        pytest.param(Holding(), [b"one\n", b"", b"", b"TWO\nTHREE\n"], 0, id="as the shape returns it"),
        pytest.param(Holding("feed"), [b"one\ntw", b"o\n", b"", b"three\n"], 1, id="it raises at first"),
        pytest.param(Holding("overdue"), [b"one\n", b"", b"two\n", b"three\n"], 1, id="while it holds something"),
        pytest.param(Holding("finish"), [b"one\n", b"", b"", b"two\nthree\n"], 1, id="at the end"),
        pytest.param(Holding("overdue", str), [b"one\n", b"", b"two\n", b"three\n"], 1, id="it returns no bytes"),
        pytest.param(Holding("overdue", object), [b"one\n", b"", b"two\n", b"three\n"], 1, id="nothing of use"),
    ],
)
def test_a_shape_that_raises_loses_no_output(
    running: RunningRound, published: list[Event], shape: Shape, shown: list[bytes], events: int
) -> None:
    running.shape_console(lambda rank, path: shape)
    stream = running.readers.shape(Shape(), 0, None)
    found = [stream.feed(b"one\ntw"), stream.feed(b"o\n"), stream.overdue(), stream.feed(b"three\n") + stream.finish()]
    assert found == shown
    assert [event.name for event in published] == ["output_unread"] * events
    if events:
        assert stream.due == math.inf


def test_the_shapes_of_several_monitors_follow_one_another(running: RunningRound) -> None:
    class Upper(Shape):
        def feed(self, data: bytes) -> bytes:
            return data.upper()

    given: list[tuple[int, Path | None]] = []
    running.shape_console(lambda *worker: given.append(worker))
    running.shape_console(lambda rank, path: Upper())
    running.shape_console(lambda rank, path: Holding())
    inner = Holding()
    stream = running.readers.shape(inner, 3, Path("stderr.log"))
    assert (stream.feed(b"one\ntwo\n"), stream.due) == (b"ONE\n", 0.0)
    assert stream.finish() == b"TWO\n"
    assert given == [(3, Path("stderr.log"))]


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
    running.read_output(lambda *_: Reporting())
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
