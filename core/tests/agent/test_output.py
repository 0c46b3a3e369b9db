"""Workers' streams with real processes, pipes and files: every byte ends where it was asked for."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import queue
import struct
import subprocess
import sys
import tty
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from elastic_core.agent.console import resize_terminal
from elastic_core.agent.output import (
    LONGEST_LINE,
    REMEMBERED,
    TAIL,
    Lines,
    LogFile,
    Output,
    Pump,
    PumpThread,
    Routes,
    WholeLines,
    WorkerStreams,
)
from elastic_core.config.parse import Stream, StreamMap
from elastic_core.monitors import LineReader, RunningRound, Shape

PATIENCE = 30.0
NONE, OUT, ERR, ALL = Stream.NONE, Stream.OUT, Stream.ERR, Stream.ALL
BOTH = "echo out; echo err >&2"


# Lines ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([], b""),
        ([b"one\n"], b"> one\n"),
        ([b"one\ntwo\n"], b"> one\n> two\n"),
        ([b"on", b"e\ntw", b"o\n"], b"> one\n> two\n"),
        ([b"no end"], b"> no end\n"),
        ([b"\n\n"], b"> \n> \n"),
        ([b"10%\r20%\r"], b"> 10%\r> 20%\r"),
        ([b"dos\r\nline\r\n"], b"> dos\r\n> line\r\n"),
        ([b"dos\r", b"\nline\r", b"\n"], b"> dos\r\n> line\r\n"),  # a line end that a read cut in two
        ([b"10%\r", b"20%\r", b"done\n"], b"> 10%\r> 20%\r> done\n"),
        ([b"a\r", b"\n\nb\n"], b"> a\r\n> \n> b\n"),
        ([b"caf\xc3", b"\xa9\n"], b"> caf\xc3\xa9\n"),
        ([b"one\x0bline\x0c\x85\x1c\n"], b"> one\x0bline\x0c\x85\x1c\n"),  # what only text takes for line ends
        ([b"\0\xff\n"], b"> \0\xff\n"),
    ],
)
def test_every_line_is_shown_whole_behind_its_prefix(pieces: list[bytes], shown: bytes) -> None:
    lines = Lines(b"> ")
    assert b"".join([*map(lines.feed, pieces), lines.finish()]) == shown


def test_a_line_is_shown_as_soon_as_it_is_whole_and_not_before() -> None:
    lines = Lines(b"> ")
    assert [lines.feed(data) for data in (b"on", b"e\ntw", b"o\r", b"")] == [b"", b"> one\n", b"> two\r", b""]


def test_a_line_without_end_does_not_wait_for_ever() -> None:
    lines = Lines(b"> ")
    half = b"x" * (LONGEST_LINE // 2)
    assert [lines.feed(half), lines.feed(half), lines.feed(b"y\n")] == [b"", b"> " + 2 * half + b"\n", b"> y\n"]
    assert lines.finish() == b""
    patient = Lines(b"> ", 5.0, lambda: 7.0)
    assert (patient.feed(b"Continue? "), patient.due) == (b"", 12.0)
    assert (patient.overdue(), patient.due, patient.feed(b"yes\n")) == (b"> Continue? \n", math.inf, b"> yes\n")


# From a worker to files and consoles ---------------------------------------------------------------------------------


@dataclass
class Rig:
    """An agent's output whose consoles are files, and the directory of its only worker."""

    folder: Path
    reports: queue.Queue[str] = field(default_factory=queue.Queue)
    output: Output | None = None

    @property
    def directory(self) -> Path:
        return self.folder / "logs" / "rank_3"

    def start(
        self,
        redirects: StreamMap | Stream = NONE,
        tee: StreamMap | Stream = NONE,
        *,
        keep: bool = False,
        out: int | None = None,
        err: int | None = None,
        several: bool = False,
        shown: Collection[int] | None = None,
    ) -> Output:
        """Make the output; what it says is in ``reports``, and its stderr may be given."""
        assert self.output is None
        with contextlib.ExitStack() as stack:
            consoles = [stack.enter_context((self.folder / name).open("wb")).fileno() for name in ("out", "err")]
            self._consoles = [os.dup(fd) for fd in consoles]
        self.output = Output(
            Routes(_map(redirects), _map(tee), keep, shown, several),
            self.reports.put,
            console_out=self._consoles[0] if out is None else out,
            console_err=self._consoles[1] if err is None else err,
        )
        return self.output

    def open(self, rank: int = 3, local_rank: int = 0) -> WorkerStreams:
        assert self.output is not None
        return self.output.open(rank=rank, local_rank=local_rank, directory=self.directory)

    def run(self, *argv: str, rank: int = 3, local_rank: int = 0) -> WorkerStreams:
        """Run a worker to its end, and wait until everything that it wrote was read."""
        assert self.output is not None
        streams = self.open(rank, local_rank)
        # Its own stdout, where it is not the output's, is nothing to these tests.
        stdout = subprocess.DEVNULL if streams.stdout is None else streams.stdout
        with subprocess.Popen(argv, stdout=stdout, stderr=streams.stderr):
            streams.close()
        self.output.drain([streams], PATIENCE)
        assert all(pump.ended.is_set() for pump in streams.pumps.values())
        return streams

    def close(self) -> None:
        """End the output, unless that was done."""
        if self.output is not None:
            output, self.output = self.output, None
            output.close(PATIENCE)
            for fd in self._consoles:
                os.close(fd)

    def shown(self) -> tuple[bytes, bytes]:
        """Return the output on the consoles at the end."""
        self.close()
        return (self.folder / "out").read_bytes(), (self.folder / "err").read_bytes()

    def kept(self) -> dict[str, bytes]:
        """Return the contents of the worker's files."""
        return {path.name: path.read_bytes() for path in self.directory.glob("*")}


def _map(streams: StreamMap | Stream) -> StreamMap:
    return StreamMap(streams) if isinstance(streams, Stream) else streams


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def writer(size: int, byte: str = "x", stream: str = "stderr") -> tuple[str, ...]:
    """A worker that writes many bytes and no line end."""
    return sys.executable, "-I", "-S", "-c", f"import sys; sys.{stream}.write({byte!r} * {size})"


OUT_LOG, ERR_LOG = {"stdout.log": b"out\n"}, {"stderr.log": b"err\n"}


@pytest.mark.parametrize(
    ("redirects", "tee", "keep", "console", "files"),
    [
        (NONE, NONE, False, (b"", b"err\n"), {}),
        (OUT, NONE, False, (b"", b"err\n"), OUT_LOG),
        (ERR, NONE, False, (b"", b""), ERR_LOG),
        (ALL, NONE, False, (b"", b""), OUT_LOG | ERR_LOG),
        (NONE, OUT, False, (b"[rank3]:out\n", b"err\n"), OUT_LOG),
        (NONE, ERR, False, (b"", b"[rank3]:err\n"), ERR_LOG),
        (NONE, ALL, False, (b"[rank3]:out\n", b"[rank3]:err\n"), OUT_LOG | ERR_LOG),
        (ALL, ALL, False, (b"[rank3]:out\n", b"[rank3]:err\n"), OUT_LOG | ERR_LOG),
        (OUT, ERR, False, (b"", b"[rank3]:err\n"), OUT_LOG | ERR_LOG),
        (NONE, NONE, True, (b"out\n", b"err\n"), OUT_LOG | ERR_LOG),
        (ALL, NONE, True, (b"", b""), OUT_LOG | ERR_LOG),
        (OUT, ERR, True, (b"", b"[rank3]:err\n"), OUT_LOG | ERR_LOG),
    ],
)
def test_streams_go_where_redirects_and_tee_say(
    rig: Rig, redirects: Stream, tee: Stream, keep: bool, console: tuple[bytes, bytes], files: dict[str, bytes]
) -> None:
    rig.start(redirects, tee, keep=keep)
    streams = rig.run("sh", "-c", BOTH)
    assert streams.tail() == "err\n"  # which explains a failure, wherever the stream went
    assert streams.stderr_path == (str(rig.directory / "stderr.log") if "stderr.log" in files else None)
    assert rig.shown() == console
    assert rig.kept() == files


def test_a_stream_map_holds_for_local_ranks(rig: Rig) -> None:
    rig.start(StreamMap(NONE, {1: ALL}), StreamMap(ERR, {1: NONE}))
    rig.run("sh", "-c", BOTH, rank=4, local_rank=0)
    assert rig.kept() == ERR_LOG
    rig.run("sh", "-c", BOTH, rank=5, local_rank=1)
    assert rig.kept() == {"stdout.log": b"out\n", "stderr.log": b"err\nerr\n"}
    assert rig.shown() == (b"", b"[rank4]:err\n")


def test_a_stdout_that_nobody_asked_for_is_the_agents_own(rig: Rig) -> None:
    """So that a script on a terminal knows that it is on one."""
    rig.start()
    streams = rig.open()
    assert streams.stdout is None
    assert streams.has_own_stdout
    streams.close()
    assert streams.has_own_stdout


def watched(lines: list[tuple[int, str]], *, every_stream: bool = False) -> RunningRound:
    """A round of which a monitor reads the lines."""
    round = RunningRound(1, "run", ["a"], Path())
    round.read_output(lambda rank, *_: LineReader(lambda line: lines.append((rank, line))), every_stream=every_stream)
    return round


def test_every_stdout_is_read_if_a_monitor_wants_that(rig: Rig) -> None:
    lines: list[tuple[int, str]] = []
    rig.start().begin(watched(lines, every_stream=True).readers)
    rig.run("sh", "-c", "echo at 7; echo err >&2")
    assert sorted(lines) == [(3, "at 7"), (3, "err")]
    assert rig.shown() == (b"at 7\n", b"err\n")


def test_stderr_is_read_for_a_monitor_anyway(rig: Rig) -> None:
    lines: list[tuple[int, str]] = []
    rig.start().begin(watched(lines).readers)
    rig.run("sh", "-c", "echo at 7; printf 'one\\rtwo' >&2")
    assert lines == [(3, "one"), (3, "two")]
    assert rig.shown() == (b"", b"one\rtwo")


class Counted(Shape):
    """Shows how many bytes have come."""

    def feed(self, data: bytes) -> bytes:
        return f"{len(data)} ".encode() if data else b""


@pytest.mark.parametrize(
    ("where", "shown", "kept"),
    [
        ({"several": True}, (b"out\n", b"4 "), [None]),
        ({"several": True, "keep": True}, (b"out\n", b"4 "), ["stderr.log"]),
        ({"several": True, "tee": ERR}, (b"out\n", b"12 "), ["stderr.log"]),
        ({"several": True, "redirects": ERR}, (b"out\n", b""), []),
        ({"keep": True}, (b"out\n", b"err\n"), []),
    ],
    ids=["alone", "in a file, too", "with a prefix", "in a file only", "of a single worker"],
)
def test_a_monitor_shapes_what_a_console_shows_of_the_stderr_of_several(
    rig: Rig, where: dict[str, Any], shown: tuple[bytes, bytes], kept: list[str | None]
) -> None:
    opened: list[tuple[int, Path | None]] = []
    round = RunningRound(1, "run", ["a"], Path())

    def shape(rank: int, path: Path | None) -> Shape:
        opened.append((rank, path))
        return Counted()

    round.shape_console(shape)
    rig.start(**where).begin(round.readers)
    rig.run("sh", "-c", BOTH)
    assert opened == [(3, name and rig.directory / name) for name in kept]
    assert rig.shown() == shown
    assert rig.kept().get("stderr.log", b"err\n") == b"err\n", "a file has all"


@pytest.mark.parametrize(
    ("apart", "streams"),
    [(False, [(3, ALL, "[rank3]:")]), (True, [(3, OUT, "[rank3]:"), (3, ERR, "[rank3]:")])],
)
def test_a_reader_is_told_its_stream_and_may_have_both_apart_on_a_terminal(
    rig: Rig, screen: tuple[int, int], apart: bool, streams: list[tuple[int, Stream, str]]
) -> None:
    opened: list[tuple[int, Stream, str]] = []
    round = RunningRound(1, "run", ["a"], Path())
    round.read_output(lambda *stream: opened.append(stream), every_stream=True, apart=apart)
    rig.start(out=screen[1], err=screen[1]).begin(round.readers)
    rig.open().close()
    assert opened == streams


def test_an_output_that_is_closed_before_it_has_heard_of_a_worker_ends_in_order(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread hears of both at once then, and ends before it is told to."""
    output, ring, rings = rig.start(redirects=OUT), os.eventfd_write, list[int]()

    def late(bell: int, count: int) -> None:
        if bell != output._thread._bell:
            ring(bell, count)
            return
        rings.append(bell)
        if len(rings) == 2:
            ring(bell, count)
            output._thread._thread.join(PATIENCE)
            assert os.readlink(f"/proc/self/fd/{bell}").startswith("anon_inode:"), "it is still its own"
            ring(bell, count)

    monkeypatch.setattr(os, "eventfd_write", late)
    rig.open().close()
    rig.close()
    assert len(rings) == 2


def test_files_get_every_byte_of_a_flood_of_binary(rig: Rig) -> None:
    rig.start(tee=OUT, redirects=ERR)
    script = "import os\nfor fd in (1, 2):\n    for _ in range(64): os.write(fd, bytes(range(256)) * 256)"
    rig.run(sys.executable, "-I", "-S", "-c", script)
    assert rig.kept() == {name: bytes(range(256)) * 256 * 64 for name in ("stdout.log", "stderr.log")}


def test_a_file_is_continued_and_not_begun_again(rig: Rig) -> None:
    rig.start(redirects=OUT)
    rig.run("echo", "one")
    rig.run("echo", "two")
    assert rig.kept() == {"stdout.log": b"one\ntwo\n"}


@pytest.mark.parametrize(("redirects", "tee"), [(NONE, ERR), (ERR, NONE)], ids=["teed", "redirected"])
@pytest.mark.parametrize(
    ("argv", "tail"),
    [
        (("true",), ""),
        (("sh", "-c", "printf 'no newline' >&2"), "no newline"),
        (writer(10 * TAIL), "x" * TAIL),
        (writer(10 * TAIL, "1234567\n"), "1234567\n" * (TAIL // 8)),
        (writer(10 * TAIL, "123456\n"), "123456\n" * (TAIL // 7)),
        (("sh", "-c", r"printf '\377\000\n' >&2"), "\N{REPLACEMENT CHARACTER}\0\n"),
    ],
    ids=["nothing", "no newline", "one huge line", "lines that fit", "lines that do not", "binary"],
)
def test_the_tail_is_the_last_whole_lines_of_stderr(
    rig: Rig, redirects: Stream, tee: Stream, argv: tuple[str, ...], tail: str
) -> None:
    rig.start(redirects, tee)
    assert rig.run(*argv).tail() == tail


def test_the_tail_of_a_file_that_the_worker_removed_is_known_all_the_same(rig: Rig) -> None:
    rig.start(redirects=ERR)
    assert rig.run("sh", "-c", f"echo kept >&2; rm {rig.directory}/stderr.log").tail() == "kept\n"


# What is slow, gone or full ------------------------------------------------------------------------------------------


def test_a_console_that_nobody_reads_does_not_stop_a_worker(rig: Rig) -> None:
    reading, writing = os.pipe()
    rig.start(tee=ERR, err=writing)
    rig.run(*writer(1 << 20, "123456789\n"))  # returns, though the console took 64 KiB at most
    assert (rig.directory / "stderr.log").stat().st_size == 10 << 20
    os.close(reading)
    rig.close()
    os.close(writing)
    assert "Broken pipe" in rig.reports.get(timeout=PATIENCE)


def test_a_console_that_is_gone_costs_no_byte_of_the_files(rig: Rig) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    rig.start(tee=ERR, err=writing)
    rig.run("sh", "-c", "echo one >&2")
    rig.run("sh", "-c", "echo two >&2")
    assert rig.kept() == {"stderr.log": b"one\ntwo\n"}
    assert "Broken pipe" in rig.reports.get(timeout=PATIENCE)
    os.close(writing)


def test_a_file_on_a_full_disk_is_reported_once_and_the_worker_goes_on(rig: Rig) -> None:
    rig.start(tee=ERR)
    streams = rig.open()
    [file] = streams.pumps[ERR]._readers
    with open("/dev/full", "wb") as full:  # in the place of its file
        assert isinstance(file, LogFile)
        os.dup2(full.fileno(), file._file)
    assert streams.stderr is not None
    os.write(streams.stderr, b"one\n")
    report = f"{rig.directory}/stderr.log is not complete: No space left on device; the worker goes on"
    assert rig.reports.get(timeout=PATIENCE) == report
    os.write(streams.stderr, b"two\n")
    streams.close()
    assert rig.output is not None
    rig.output.drain([streams], PATIENCE)
    assert rig.reports.empty()
    assert streams.tail() == "one\ntwo\n"
    assert rig.shown() == (b"", b"[rank3]:one\n[rank3]:two\n")


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("prepare", "number"),
    [
        (lambda directory: (directory / "stderr.log").symlink_to("/etc/passwd"), errno.ELOOP),
        (lambda directory: (directory / "stderr.log").mkdir(), errno.EISDIR),
    ],
    ids=["link", "directory"],
)
def test_a_file_that_cannot_be_opened_is_an_error_and_leaves_no_descriptor_behind(
    rig: Rig, prepare: Callable[[Path], None], number: int
) -> None:
    rig.start(tee=ALL)
    rig.directory.mkdir(parents=True)
    prepare(rig.directory)
    before = descriptors()
    with pytest.raises(OSError, match=str(rig.directory)) as caught:
        rig.open()
    assert caught.value.errno == number
    assert descriptors() == before


def test_nothing_is_left_open_after_the_end(rig: Rig) -> None:
    before = descriptors()
    rig.start(redirects=OUT, tee=ERR)
    for _ in range(20):
        rig.run("sh", "-c", BOTH)
    rig.close()
    assert descriptors() == before


# Ends ----------------------------------------------------------------------------------------------------------------


def held_open_by_a_child(rig: Rig) -> tuple[WorkerStreams, int]:
    """A worker that wrote ``half a line`` and ended, and a descriptor of its that goes on, as a child of its may."""
    streams = rig.open()
    assert streams.stderr is not None
    child = os.dup(streams.stderr)
    os.write(child, b"half a line")
    streams.close()
    return streams, child


def test_the_end_of_a_stream_is_not_waited_for_beyond_the_timeout(rig: Rig) -> None:
    output = rig.start(tee=ERR)
    streams, child = held_open_by_a_child(rig)
    output.drain([streams], timeout=0)
    assert not streams.pumps[ERR].ended.is_set()
    os.close(child)
    output.drain([streams], PATIENCE)
    assert streams.pumps[ERR].ended.is_set()


def test_arrived_bytes_are_shown_at_the_end_though_the_stream_goes_on(rig: Rig) -> None:
    rig.start(tee=ERR)
    _, child = held_open_by_a_child(rig)
    assert rig.shown() == (b"", b"[rank3]:half a line\n")
    assert rig.kept() == {"stderr.log": b"half a line"}
    with pytest.raises(BrokenPipeError):
        os.write(child, b"nobody reads")
    os.close(child)


def test_the_output_of_a_living_worker_can_be_read(rig: Rig) -> None:
    output = rig.start(tee=ERR)
    streams, child = held_open_by_a_child(rig)
    for line in range(1000):
        os.write(child, b"\n%d" % line)
        output.catch_up([streams], PATIENCE)
        assert streams.tail().endswith(f"\n{line}"), "read at once"
    os.close(child)
    output.drain([streams], PATIENCE)
    output.catch_up([streams], PATIENCE)
    assert streams.tail().endswith("\n999"), "also of a stream that is over"


SAYS = ("sh", "-c", "echo apple; echo pear; printf 'last apple'; echo a cherry >&2")


def test_ranks_that_are_not_to_be_shown_are_kept_in_files(rig: Rig) -> None:
    rig.start(tee=Stream.ALL, shown=[0])
    rig.run(*SAYS, rank=7, local_rank=1)
    assert rig.kept() == {"stdout.log": b"apple\npear\nlast apple", "stderr.log": b"a cherry\n"}
    rig.run(*SAYS, rank=6, local_rank=0)
    assert rig.shown() == (b"[rank6]:apple\n[rank6]:pear\n[rank6]:last apple\n", b"[rank6]:a cherry\n")


# Lines of several ranks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        pytest.param([b"one", b"\n"], [b"", b"one\n"], id="a line and its end in two writes"),
        pytest.param([b"one\ntw", b"o\n"], [b"one\n", b"two\n"], id="a line that a buffer cuts in two"),
        pytest.param([b"\r10%", b"\r20%", b"\n"], [b"\r10%", b"\r20%", b"\n"], id="a progress bar"),
        pytest.param([b"x" * LONGEST_LINE, b"\n"], [b"x" * LONGEST_LINE, b"\n"], id="a line that is too long"),
        pytest.param([b"a\x1b[0m\r\n"], [b"a\x1b[0m\r\n"], id="bytes stay as they are"),
    ],
)
def test_lines_are_passed_on_when_they_are_whole(pieces: list[bytes], shown: list[bytes]) -> None:
    lines = WholeLines(None)
    assert [lines.feed(piece) for piece in pieces] == shown
    assert (lines.finish(), lines.due) == (b"", math.inf)


def test_a_terminal_waits_a_moment_for_the_end_of_a_line_and_others_for_ever() -> None:
    watched, logged = WholeLines(0.1, lambda: 5.0), WholeLines(None, lambda: 5.0)
    assert (watched.feed(b"Continue? "), logged.feed(b"Continue? ")) == (b"", b"")
    assert (watched.due, logged.due) == (5.1, math.inf)
    assert (watched.overdue(), watched.due, watched.feed(b"yes\n")) == (b"Continue? ", math.inf, b"yes\n")


@pytest.mark.parametrize("keep", [False, True])
def test_lines_of_several_workers_do_not_mix(rig: Rig, keep: bool) -> None:
    """Each print is two writes where nothing buffers: the text, and its end."""
    program = "import os, sys\nfor _ in range(2000): print(sys.argv[1] * 20); print(sys.argv[1] * 30, file=sys.stderr)"
    output = rig.start(keep=keep, several=True)
    workers = []
    for local_rank in range(2):
        streams = output.open(rank=local_rank, local_rank=local_rank, directory=rig.folder / str(local_rank))
        argv = [sys.executable, "-u", "-c", program, str(local_rank)]
        workers.append((streams, subprocess.Popen(argv, stdout=streams.stdout, stderr=streams.stderr)))
        streams.close()
    for streams, process in workers:
        assert process.wait(PATIENCE) == 0
        output.drain([streams], PATIENCE)
    rig.close()
    shown = {name: sorted((rig.folder / name).read_text().split("\n")) for name in ("out", "err")}
    assert shown["out"] == ["", *["0" * 20] * 2000, *["1" * 20] * 2000]
    assert shown["err"] == ["", *["0" * 30] * 2000, *["1" * 30] * 2000]


def test_a_prefix_that_torch_has_written_is_not_doubled() -> None:
    lines = Lines(b"[rank0]:")
    assert lines.feed(b"[rank0]: Traceback\n[rank0]:W1123 x\nother\n") == (
        b"[rank0]: Traceback\n[rank0]:W1123 x\n[rank0]:other\n"
    )


# Pseudo-terminals ----------------------------------------------------------------------------------------------------

LOOK = """
import os, sys, termios
for fd in (1, 2):
    os.write(fd, f"{os.isatty(fd)} {os.get_terminal_size(fd) if os.isatty(fd) else ''}\\n".encode())
try:
    os.open("/dev/tty", os.O_RDWR)
except OSError:
    os.write(2, b"no controlling terminal\\n")
"""


@pytest.fixture
def screen() -> Iterator[tuple[int, int]]:
    """A terminal of 30 rows and 100 columns: our end, and the one that programs have."""
    ours, theirs = os.openpty()
    resize_terminal(ours, struct.pack("HHHH", 30, 100, 0, 0))
    yield ours, theirs
    for fd in (ours, theirs):
        os.close(fd)


def test_where_the_console_is_a_terminal_stderr_is_one_of_the_same_size(rig: Rig, screen: tuple[int, int]) -> None:
    rig.start(err=screen[1])
    streams = rig.open()
    with subprocess.Popen(
        [sys.executable, "-c", LOOK], stdout=subprocess.DEVNULL, stderr=streams.stderr, start_new_session=True
    ):
        streams.close()
    assert rig.output is not None
    rig.output.drain([streams], PATIENCE)
    assert streams.tail().splitlines() == [
        "True os.terminal_size(columns=100, lines=30)",
        "no controlling terminal",
    ]


def test_stdout_of_several_workers_is_a_terminal_where_the_console_is_one(rig: Rig, screen: tuple[int, int]) -> None:
    rig.start(out=screen[1], several=True)
    streams = rig.open()
    assert streams.stdout is not None
    assert os.get_terminal_size(streams.stdout) == (100, 30)
    streams.close()


@pytest.mark.parametrize("where", [{"redirects": ERR}, {"tee": ERR}, {"shown": {1}}])
def test_a_stream_that_goes_to_a_file_is_no_terminal(rig: Rig, screen: tuple[int, int], where: dict[str, Any]) -> None:
    rig.start(err=screen[1], **where)
    streams = rig.open()
    assert streams.stderr is not None
    assert not os.isatty(streams.stderr)
    streams.close()


def test_a_terminal_changes_no_byte_and_the_tail_has_no_colours(rig: Rig, screen: tuple[int, int]) -> None:
    raw = screen[1]
    tty.setraw(raw)
    rig.start(err=raw)
    said = b"\x03\x04\x1a\x1b[31mValueError: boom\x1b[0m\n\r\t\x00\xff end\n"
    streams = rig.open()
    assert streams.stderr is not None
    os.write(streams.stderr, said)
    streams.close()
    assert rig.output is not None
    rig.output.drain([streams], PATIENCE)
    assert os.read(screen[0], 4096) == said
    assert "ValueError: boom\n" in streams.tail()
    assert "[31m" not in streams.tail()


def test_a_new_window_size_reaches_the_workers(rig: Rig, screen: tuple[int, int]) -> None:
    output = rig.start(err=screen[1])
    streams = rig.open()
    assert streams.stderr is not None
    resize_terminal(screen[0], struct.pack("HHHH", 50, 200, 0, 0))
    output.resize()
    output.catch_up([streams], PATIENCE)  # after that
    assert os.get_terminal_size(streams.stderr) == (200, 50)
    streams.close()


def test_all_that_a_terminal_holds_is_read_when_a_worker_has_failed() -> None:
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    for fd in (ours, theirs):
        os.set_blocking(fd, False)
    held = b""
    with contextlib.suppress(BlockingIOError):
        while True:
            line = b"%07d\n" % len(held)
            held += line[: os.write(theirs, line)]
    pump = Pump(ours, [], None, Shape())
    thread = PumpThread("pump")
    thread.catch_up([pump], PATIENCE)
    assert len(held) > 2 * TAIL
    assert pump.tail == held[-REMEMBERED - 1 :]
    pump.close()
    thread.close(PATIENCE)
    os.close(theirs)


def test_without_pseudo_terminals_a_pipe_does(
    rig: Rig, screen: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> tuple[int, int]:
        raise OSError(errno.ENOSPC, "No space left on device")

    rig.start(err=screen[1])
    monkeypatch.setattr(os, "openpty", none_left)
    assert rig.run("sh", "-c", "echo x >&2").tail() == "x\n"


def test_a_console_whose_reader_has_gone_ends_the_stdout_of_several_workers(rig: Rig) -> None:
    """As ``| head`` ends a program that writes there itself."""
    reading, writing = os.pipe()
    os.close(reading)
    rig.start(out=writing, several=True)
    streams = rig.run("sh", "-c", "trap '' PIPE; echo x; while echo y 2>/dev/null; do :; done")
    assert streams.stdout is None
    assert "the console is gone (Broken pipe)" in rig.reports.get(timeout=PATIENCE)
    os.close(writing)
