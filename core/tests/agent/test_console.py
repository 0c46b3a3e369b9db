"""The way to a console, with real pipes and terminals: nothing that it does is felt by the writer."""

from __future__ import annotations

import contextlib
import os
import pty
import queue
import threading
import tracemalloc
import tty
from collections.abc import Iterator

import pytest

from elastic_core.agent.console import Console, write_all

PATIENCE = 30.0
KIB = 1024
PIPE = 64 * KIB
"""Bytes that a pipe holds before its writer waits."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends; a test that closes one itself puts it behind another descriptor first."""
    reading, writing = os.pipe()
    yield reading, writing
    for fd in (reading, writing):
        with contextlib.suppress(OSError):
            os.close(fd)


class Reader(threading.Thread):
    """Reads a descriptor to its end, from when it is started."""

    def __init__(self, fd: int) -> None:
        super().__init__(daemon=True)
        self._fd = fd
        self._read = bytearray()

    def run(self) -> None:
        while part := os.read(self._fd, PIPE):
            self._read += part

    def all(self) -> bytes:
        """Everything, once the other end is closed."""
        self.join(PATIENCE)
        assert not self.is_alive()
        return bytes(self._read)


def silent(message: str) -> None:
    raise AssertionError(message)


def fill(fd: int) -> int:
    """Write to an unread pipe until it is full; return the number of bytes."""
    os.set_blocking(fd, False)
    written = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            written += os.write(fd, b"." * 4096)
    os.set_blocking(fd, True)
    return written


def test_written_bytes_arrive_in_order(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    console = Console(writing, silent)
    for number in range(1000):
        console.write(b"%d " % number)
    console.close(PATIENCE)
    assert os.read(reading, PIPE).split() == [b"%d" % number for number in range(1000)]


def test_closing_waits_for_a_reader_that_is_only_late(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    console = Console(writing, silent)
    chunk = os.urandom(100 * KIB)
    for _ in range(10):
        console.write(chunk)
    reader = Reader(reading)
    reader.start()
    console.close(PATIENCE)
    os.close(writing)
    assert reader.all() == chunk * 10


def test_a_console_that_nobody_reads_neither_stops_the_writer_nor_the_end(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    fill(writing)
    reports: queue.Queue[str] = queue.Queue()
    console = Console(writing, reports.put, capacity=KIB)
    for _ in range(10_000):
        console.write(b"x" * KIB)
    console.close(timeout=0)
    os.close(reading)
    assert "Broken pipe" in reports.get(timeout=PATIENCE)  # until then it was stuck


def test_dropped_bytes_are_counted_where_they_are_missing(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    filling = fill(writing)
    console = Console(writing, silent, capacity=10)
    console.write(b"begin ")  # the console's thread takes it and waits
    console.write(b"too much for ten")
    console.write(b"x" * 2000)
    reader = Reader(reading)
    reader.start()
    console.close(PATIENCE)
    os.close(writing)
    shown = reader.all()[filling:]
    assert shown == b"begin \n[elastic] the console was too slow: 2,016 bytes of workers' output are missing here\n"


def test_a_console_that_flows_again_shows_what_follows(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    filling = fill(writing)
    console = Console(writing, silent, capacity=1000)
    console.write(b"a" * 400)
    console.write(b"x" * 2000)
    for _ in range(filling // 4096):
        os.read(reading, 4096)
    missing = b"\n[elastic] the console was too slow: 2,000 bytes of workers' output are missing here\n"
    shown = b""
    while shown != b"a" * 400 + missing:  # said at once: nothing else may ever be written
        shown += os.read(reading, PIPE)
    console.write(b"z" * 100)  # there is room for it only because the first chunk is gone
    console.close(PATIENCE)
    assert os.read(reading, PIPE) == b"z" * 100


def test_a_console_that_fell_behind_is_fed_again_once_half_of_it_is_free(pipe: tuple[int, int]) -> None:
    """Else one line in a hundred would come through, which is of no use."""
    reading, writing = pipe
    filling = fill(writing)
    console = Console(writing, silent, capacity=100)
    console.write(b"a" * 90)
    console.write(b"b" * 20)  # too much
    console.write(b"c" * 5)  # would fit, but is kept out
    reader = Reader(reading)
    reader.start()
    console.close(PATIENCE)
    os.close(writing)
    shown = reader.all()[filling:]
    assert shown.startswith(b"a" * 90 + b"\n[elastic] the console was too slow: 25 bytes")


def test_a_console_that_is_gone_is_reported_once_and_stops_nobody(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.close(reading)
    reports: queue.Queue[str] = queue.Queue()
    console = Console(writing, reports.put)
    console.write(b"lost")
    assert reports.get(timeout=PATIENCE) == (
        "the console is gone (Broken pipe): workers' output is no longer shown there"
    )
    for _ in range(10_000):
        console.write(b"x" * KIB)
    console.close(PATIENCE)
    assert reports.empty()


def test_a_console_that_is_gone_keeps_none_of_the_output(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    fill(writing)
    reports: queue.Queue[str] = queue.Queue()
    tracemalloc.start()
    try:
        console = Console(writing, reports.put)
        for _ in range(4):
            console.write(bytes(1024 * KIB))  # the first is being written, the others wait
        os.close(reading)
        assert "Broken pipe" in reports.get(timeout=PATIENCE)
        console.close(PATIENCE)
        assert tracemalloc.get_traced_memory()[0] < 1024 * KIB
    finally:
        tracemalloc.stop()


def test_a_console_that_goes_away_while_it_is_stuck_ends_its_thread(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    fill(writing)
    reports: queue.Queue[str] = queue.Queue()
    console = Console(writing, reports.put)
    console.write(b"stuck")
    os.close(reading)
    assert "Broken pipe" in reports.get(timeout=PATIENCE)
    console.close(PATIENCE)


def test_an_agent_without_a_console_says_so_and_goes_on() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    reports: queue.Queue[str] = queue.Queue()
    console = Console(1 << 20, reports.put)  # no descriptor has that number
    console.write(b"lost")
    assert "Bad file descriptor" in reports.get(timeout=PATIENCE)
    console.close(PATIENCE)


def test_bytes_written_after_the_end_are_dropped(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    console = Console(writing, silent)
    console.write(b"before")
    console.close(PATIENCE)
    console.write(b"after")
    os.close(writing)
    assert os.read(reading, PIPE) == b"before"


def test_a_console_that_somebody_made_non_blocking_gets_everything() -> None:
    """A terminal is shared: one program that makes it non-blocking makes it so for all."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)  # else the terminal would change line ends
    os.set_blocking(theirs, False)
    data = os.urandom(256 * KIB)
    console = Console(theirs, silent)
    console.write(data)
    shown = b""
    while len(shown) < len(data):
        shown += os.read(ours, PIPE)
    console.close(PATIENCE)
    os.close(theirs)
    os.close(ours)
    assert shown == data


def test_writing_everything_to_a_file_that_is_full_fails() -> None:
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError, match="No space left"):
        write_all(full.fileno(), b"x")
