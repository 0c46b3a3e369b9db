"""Sends workers' streams to files and the console, as torchrun does, and keeps the end of stderr to explain failures.

A stream that is only shown is a pseudo-terminal if the console is a terminal, so progress bars and colours stay. A
pump thread reads the streams and each console has a thread (``console.py``), so neither a flood nor a stuck terminal
blocks the agent's loop. A full disk ends a log file, not its worker. Another pump thread waits for the console, so that
a slow reader misses nothing: it shows the stdout of several workers, or both streams of a worker if both consoles are
one terminal. They then share one pseudo-terminal, which keeps their order.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import queue
import re
import selectors
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic_core.agent.console import (
    Console,
    DirectConsole,
    open_terminal_like,
    resize_terminal,
    window_size,
    write_all,
)
from elastic_core.agent.directories import make_directories
from elastic_core.causes import last_lines
from elastic_core.config.parse import Stream, StreamMap
from elastic_core.config.run import RunConfig
from elastic_core.monitors import OutputReader, OutputReaders, Shape

TAIL = 4096  # bytes of stderr that an incident may show
REMEMBERED = 16384  # bytes of stderr that are remembered: faulthandler's stacks follow what native code wrote
LONGEST_LINE = 1 << 22  # bytes of a line that wait for its end; a longer one is shown in pieces
PIECES_WITHIN = 0.1  # seconds that a terminal waits for the rest of a line
LINES_WITHIN = 5.0  # seconds that a file, and a stream with a prefix, wait for the rest of a line

_CHUNK = 1 << 16
_READS = 20  # how often a stream is read until nothing is left: a pseudo-terminal holds 64 KiB and gives 4 KiB at once
_CANNOT_TAKE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})
"""Errors of a disk that cannot take a log just now."""
_FLUSH = 2.0
_DIRECT_FLUSH = 30.0
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_FILES = {Stream.OUT: "stdout.log", Stream.ERR: "stderr.log"}


class WorkerStreams:
    """One worker's stdout and stderr, as the agent has them."""

    def __init__(self, given: dict[Stream, int | None], pumps: dict[Stream, Pump], stderr_path: Path | None) -> None:
        self.stdout, self.stderr = given[Stream.OUT], given[Stream.ERR]
        """The descriptors for the worker; None if it gets the agent's own."""
        self.has_own_stdout = given[Stream.OUT] is None  # so that the agent does not see what the worker prints
        self.stderr_path = None if stderr_path is None else str(stderr_path)  # the file in which its stderr is kept
        self.pumps = pumps

    def close(self) -> None:
        """Close the agent's copies of the worker's ends; call it once the warden was asked to start the worker."""
        for fd in (self.stdout, self.stderr):
            if fd is not None:
                os.close(fd)
        self.stdout = self.stderr = None

    def tail(self, limit: int = TAIL) -> str:
        """Return the last whole lines of stderr, ``limit`` bytes at most, without colours; of a longer line, its end.

        Of 16 KiB at most: what native code writes last stands before faulthandler's stacks, which may be longer than
        an incident shows.
        """
        return _STYLE.sub("", last_lines(self.pumps[Stream.ERR].tail, limit))


@dataclass(frozen=True)
class Routes:
    """The destinations of the streams of each local rank."""

    redirects: StreamMap  # the streams that go to a file only
    tee: StreamMap
    """The streams that go to a file and, with ``[rank3]:`` before each line, to the console. It overrides
    ``redirects``."""
    keep: bool = False  # whether all other streams are kept in a file as well
    shown: Collection[int] | None = None
    """The local ranks that the console shows; streams of the others go to files only. None for all."""
    several: bool = False
    """True if the console shows more than one worker: then in whole lines. A single worker has the agent's own stdout,
    unless that is kept as well."""

    @classmethod
    def of(cls, config: RunConfig) -> Routes:
        """Return the routes of a run."""
        shown = config.local_ranks_filter
        several = len(shown or range(config.nproc_per_node)) > 1
        return cls(config.redirects, config.tee, config.log_dir is not None, shown, several)

    def is_shown(self, local_rank: int) -> bool:
        """Return whether the console shows a local rank."""
        return self.shown is None or local_rank in self.shown

    def is_plain(self, stream: Stream, local_rank: int) -> bool:
        """Return whether a stream goes to the console, and nowhere else."""
        elsewhere = self.redirects[local_rank] | self.tee[local_rank]
        return self.is_shown(local_rank) and not (stream in elsewhere or self.keep)


class Output:
    """All workers' streams of one agent, which the descriptors ``console_out`` and ``console_err`` show.

    ``report`` is called with a message, once for each file or console that cannot be written; from any thread.
    """

    def __init__(
        self, routes: Routes, report: Callable[[str], None], *, console_out: int = 1, console_err: int = 2
    ) -> None:
        self._routes, self._report = routes, report
        self._readers = OutputReaders()
        self._fds = {Stream.OUT: console_out, Stream.ERR: console_err}
        self._one_terminal = (
            os.isatty(console_out) and os.isatty(console_err) and os.path.sameopenfile(console_out, console_err)
        )
        self._consoles = {Stream.OUT: Console(console_out, report), Stream.ERR: Console(console_err, report)}
        self._direct = DirectConsole(console_out, report)
        self._thread, self._direct_thread = PumpThread("elastic-output"), PumpThread("elastic-direct")

    def begin(self, readers: OutputReaders) -> None:
        """Have the monitors of a round read and shape the streams that are opened next."""
        self._readers = readers

    def open(self, *, rank: int, local_rank: int, directory: Path, prefix: str | None = None) -> WorkerStreams:
        """Make the streams of a worker, which is started next; its files will be in ``directory``.

        If a disk cannot take a file, that is reported and the stream goes on without it.

        Raises:
            OSError: A file cannot be opened for another reason (a symbolic link is not followed), or no descriptor is
                left.
        """
        with contextlib.ExitStack() as undo:
            prefix = prefix or f"[rank{rank}]:"
            one = self._one_terminal and not self._readers.apart
            found = self._open_terminal(rank, local_rank, prefix, undo) if one else None
            streams = found or self._open_each(rank, local_rank, directory, prefix, undo)
            undo.pop_all()
        for thread, pumps in self._by_thread([streams]):
            thread.add(pumps)
        return streams

    def _by_thread(self, workers: Iterable[WorkerStreams]) -> Iterator[tuple[PumpThread, Sequence[Pump]]]:
        """Yield the pumps of workers with their thread; the one of those that wait for the console comes last."""
        pumps = [pump for streams in workers for pump in streams.pumps.values()]
        for thread, waits in ((self._thread, False), (self._direct_thread, True)):
            if found := [pump for pump in pumps if (pump.console is self._direct) is waits]:
                yield thread, found

    def _open_terminal(
        self, rank: int, local_rank: int, prefix: str, undo: contextlib.ExitStack
    ) -> WorkerStreams | None:
        """Open one pseudo-terminal for both streams, which keeps their order.

        Return None if a stream goes elsewhere, or no pseudo-terminal is left.
        """
        if not all(self._routes.is_plain(stream, local_rank) for stream in _FILES):
            return None
        if (ends := open_terminal_like(self._fds[Stream.ERR])) is None:
            return None
        reading, writing = ends
        undo.callback(os.close, reading)
        undo.callback(os.close, writing)
        copy = os.dup(writing)
        undo.callback(os.close, copy)
        shape = Shape()
        if self._routes.several:
            shape = self._readers.shape(WholeLines(PIECES_WITHIN), rank, None)
        pump = Pump(reading, self._readers.open(rank, Stream.ALL, prefix), self._direct, shape, local_rank)
        return WorkerStreams({Stream.OUT: copy, Stream.ERR: writing}, {Stream.ERR: pump}, None)

    def _open_each(
        self, rank: int, local_rank: int, directory: Path, prefix: str, undo: contextlib.ExitStack
    ) -> WorkerStreams:
        given: dict[Stream, int | None] = {}
        pumps: dict[Stream, Pump] = {}
        kept: dict[Stream, Path] = {}
        routes, shown = self._routes, self._routes.is_shown(local_rank)
        for stream, name in _FILES.items():
            direct = stream is Stream.OUT and routes.is_plain(stream, local_rank)
            read = routes.several or self._readers.every_stream or self._one_terminal  # which may have hung up by now
            if direct and not read:
                given[stream] = None
                continue
            teed = shown and stream in routes.tee[local_rank]
            redirected = not teed and (stream in routes.redirects[local_rank] or not shown)
            path, readers = directory / name, self._readers.open(rank, stream, prefix)
            if (teed or redirected or routes.keep) and (file := self._open_file(path, undo)) is not None:
                kept[stream] = path
                readers.append(file)
            terminal = None if teed or redirected else open_terminal_like(self._fds[stream])
            reading, writing = terminal or os.pipe2(os.O_CLOEXEC)
            undo.callback(os.close, reading)
            undo.callback(os.close, writing)
            given[stream] = writing
            shape = Shape()
            if teed:
                shape = Lines(prefix.encode(), LINES_WITHIN)
            elif routes.several:
                shape = WholeLines(LINES_WITHIN if terminal is None else PIECES_WITHIN)
            if stream is Stream.ERR and routes.several and not redirected:
                shape = self._readers.shape(shape, rank, kept.get(stream))
            console = None if redirected else self._direct if direct else self._consoles[stream]
            pumps[stream] = Pump(reading, readers, console, shape, local_rank)
        return WorkerStreams(given, pumps, kept.get(Stream.ERR))

    def _open_file(self, path: Path, undo: contextlib.ExitStack) -> LogFile | None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            make_directories(path.parent)
            file = os.open(path, flags | os.O_NONBLOCK, 0o640)  # opening a FIFO would wait
            os.set_blocking(file, True)
        except OSError as exc:
            if exc.errno not in _CANNOT_TAKE:
                raise
            self._report(f"{path} cannot be written: {exc.strerror}; the worker runs without it")
            return None
        undo.callback(os.close, file)
        return LogFile(path, file, self._report)

    def drain(self, workers: Iterable[WorkerStreams], timeout: float) -> None:
        """Wait until all output of ended workers was read, ``timeout`` seconds at most: their children may live on."""
        deadline = time.monotonic() + timeout
        for pump in [pump for streams in workers for pump in streams.pumps.values()]:
            pump.ended.wait(max(0.0, deadline - time.monotonic()))

    def catch_up(self, workers: Iterable[WorkerStreams], timeout: float) -> None:
        """Wait until what living workers have written by now was read, ``timeout`` seconds at most."""
        deadline = time.monotonic() + timeout
        for thread, pumps in self._by_thread(workers):
            thread.catch_up(pumps, max(0.0, deadline - time.monotonic()))

    def resize(self) -> None:
        """Give the workers' pseudo-terminals the console's window size, which has changed."""
        sizes = [size for fd in self._fds.values() if (size := window_size(fd)) is not None]
        for thread in (self._thread, self._direct_thread):
            if sizes:
                thread.resize(sizes[0])

    def close(self, timeout: float = _FLUSH) -> None:
        """Forward the output that has arrived, then stop, after ``timeout`` seconds at the latest.

        The pumps that wait for the console have ``_DIRECT_FLUSH`` seconds, for a slow reader such as a pager.
        """
        self._direct_thread.close(_DIRECT_FLUSH)
        deadline = time.monotonic() + timeout
        self._thread.close(timeout)
        for console in self._consoles.values():
            console.close(max(0.0, deadline - time.monotonic()))


class Pump:
    """One stream of a worker, for the pump thread. Other threads only read ``tail`` and ``ended``."""

    def __init__(
        self,
        pipe: int,  # a pipe, or our end of a pseudo-terminal, which is made not to block; closed with this object
        readers: Sequence[OutputReader],  # files, and the monitors' readers: they take all bytes
        console: DirectConsole | None,  # shows the stream
        shape: Shape,  # changes the stream before it is shown
        rank: int = 0,
    ) -> None:
        self.pipe, self.console, self.shape = pipe, console, shape
        self._readers, self._rank = readers, rank
        self.tail = b""
        """The last ``REMEMBERED`` bytes, and one more that tells whether they begin a line. Replaced, never changed."""
        self.ended = threading.Event()
        os.set_blocking(pipe, False)

    def transfer(self) -> bool:
        """Pass on what can be read; return False at the end of the stream, or if the console is gone."""
        try:
            data = os.read(self.pipe, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:  # EIO: the last process with this pseudo-terminal has closed it
            data = b""
        if data:
            self.tail = (self.tail + data)[-REMEMBERED - 1 :]
            for reader in self._readers:
                reader.feed(data)
        return self.show(self.shape.feed(data)) and bool(data)

    def show(self, data: bytes) -> bool:
        """Show data that has its shape; return False if the console is gone."""
        return not data or self.console is None or self.console.write(data, self._rank)

    def close(self) -> None:
        """Show the rest of the shape, and close: the stream is over, or its rest is not needed."""
        self.show(self.shape.finish())
        for reader in self._readers:
            reader.finish()
        os.close(self.pipe)
        self.ended.set()


class PumpThread:
    """A thread that reads the streams of many workers. Any thread may call the methods."""

    def __init__(self, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._orders: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, pumps: Sequence[Pump]) -> None:
        """Read these pumps, too, to the ends of their streams."""
        self._order(lambda: [self._selector.register(pump.pipe, selectors.EVENT_READ, pump) for pump in pumps])

    def catch_up(self, pumps: Sequence[Pump], timeout: float) -> None:
        """Wait until these pumps have passed on what can be read now, ``timeout`` seconds at most."""
        done = threading.Event()

        def read() -> None:
            for _ in range(_READS):
                self._transfer(pumps)
            done.set()

        self._order(read)
        done.wait(timeout)

    def resize(self, size: bytes) -> None:
        """Give all pseudo-terminals this window size."""

        def pass_on() -> None:
            for pump in self._pumps():
                resize_terminal(pump.pipe, size)

        self._order(pass_on)

    def close(self, timeout: float) -> None:
        """Forward the output that has arrived, then stop; abandon a thread that is stuck after ``timeout`` seconds."""
        self._closing = True
        os.eventfd_write(self._bell, 1)
        self._thread.join(timeout)
        if not self._thread.is_alive():
            os.close(self._bell)  # here, and not when it ends: it may end before it is rung for

    def _order(self, order: Callable[[], object]) -> None:
        self._orders.put(order)
        os.eventfd_write(self._bell, 1)

    def _pumps(self) -> list[Pump]:
        return [key.data for key in self._selector.get_map().values() if key.data is not None]

    def _run(self) -> None:
        """Read until the thread is closed and nothing is left to read."""
        while True:
            closing = self._closing
            ready = self._selector.select(0 if closing else self._patience())
            pumps = [key.data for key, _ in ready if key.data is not None]
            if len(pumps) < len(ready):
                os.eventfd_read(self._bell)
                while not self._orders.empty():
                    self._orders.get()()
            elif closing and not pumps:
                break
            self._transfer(pumps)
            now = time.monotonic()
            for pump in [pump for pump in self._pumps() if pump.shape.due <= now]:
                if not pump.show(pump.shape.overdue()):
                    self._end(pump)
        for pump in self._pumps():
            self._end(pump)
        self._selector.close()

    def _patience(self) -> float | None:
        """Return the seconds until a shape is due; None if none will be."""
        due = min((pump.shape.due for pump in self._pumps()), default=math.inf)
        return None if due == math.inf else max(0.0, due - time.monotonic())

    def _transfer(self, pumps: Sequence[Pump]) -> None:
        for pump in pumps:
            if not pump.ended.is_set() and not pump.transfer():
                self._end(pump)

    def _end(self, pump: Pump) -> None:
        self._selector.unregister(pump.pipe)
        pump.close()


class WholeLines(Shape):
    """Passes on a stream in whole lines, so that the lines of several ranks do not mix.

    What follows a carriage return is passed on as it comes: it is the newest state of a progress bar. A line without an
    end is passed on after ``patience`` seconds; with None it waits for its end.
    """

    def __init__(self, patience: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock = patience, clock
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return all lines that ``data`` completes."""
        lines, self._rest = self._split(self._rest + data)
        if len(self._rest) >= LONGEST_LINE:
            lines += self.finish()
        self.due = self._clock() + self._patience if self._rest and self._patience is not None else math.inf
        return lines

    def finish(self) -> bytes:
        """Return what waits, as it is."""
        rest, self._rest, self.due = self._rest, b"", math.inf
        return rest

    def overdue(self) -> bytes:
        """Return what waits, as at the end."""
        return self.finish()

    def _split(self, data: bytes) -> tuple[bytes, bytes]:
        """Return what can be shown of ``data``, and the rest."""
        end = len(data) if data.rfind(b"\r") > data.rfind(b"\n") else data.rfind(b"\n") + 1
        return data[:end], data[end:]


class Lines(WholeLines):
    """Puts a prefix before each line that does not begin with it already, as torch's log lines and tracebacks do.

    A carriage return ends a line, since a progress bar would be held back until it is full otherwise.
    """

    def __init__(
        self, prefix: bytes, patience: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(patience, clock)
        self._prefix = prefix
        self._returned = False

    def feed(self, data: bytes) -> bytes:
        """Return all lines that ``data`` completes, with their prefix."""
        end = b"\n" if self._returned and data.startswith(b"\n") else b""  # of a line end that was cut in two
        self._returned = data.endswith(b"\r")
        return end + super().feed(data[len(end) :])

    def finish(self) -> bytes:
        """Return what waits, as a line."""
        rest = super().finish()
        return _prefixed(self._prefix, rest) + b"\n" if rest else b""

    def _split(self, data: bytes) -> tuple[bytes, bytes]:
        lines = data.splitlines(keepends=True)
        rest = lines.pop() if lines and not lines[-1].endswith((b"\n", b"\r")) else b""
        return b"".join(_prefixed(self._prefix, line) for line in lines), rest


class LogFile(OutputReader):
    """A file that keeps all bytes of a stream. A full disk ends the file, not its worker.

    The descriptor ``file`` is closed at the end of the stream. ``report`` is called with a message, once, if the file
    cannot take all bytes.
    """

    def __init__(self, path: Path, file: int, report: Callable[[str], None]) -> None:
        self._path, self._file, self._report = path, file, report
        self._reported = False

    def feed(self, data: bytes) -> None:
        """Keep the bytes."""
        try:
            write_all(self._file, data)
        except OSError as exc:
            if not self._reported:
                self._reported = True
                self._report(f"{self._path} is not complete: {exc.strerror}; the worker goes on")

    def finish(self) -> None:
        """Close the file."""
        os.close(self._file)


def _prefixed(prefix: bytes, line: bytes) -> bytes:
    return line if line.startswith(prefix) else prefix + line
