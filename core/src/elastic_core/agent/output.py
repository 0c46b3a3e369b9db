"""Where workers' streams go: to files, to the console, to both; and the end of stderr to memory, to explain failures.

As torchrun has it, ``--redirects`` sends a stream to a file only, ``--tee`` to a file and, with ``[rank3]:`` before
each line, to the console. A stream that is neither goes to the console unchanged. One *pump* thread reads all pipes,
and threads of their own write to the console (``console.py``), so no flood and no stuck terminal is ever felt by the
agent's loop. Files get every byte. A worker writes to a pipe and never to its log file: a full disk ends the log, not
the worker.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import selectors
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from elastic_core.agent.console import Console, write_all
from elastic_core.agent.error_files import last_lines
from elastic_core.config import Stream, StreamMap

TAIL = 4096
"""Bytes of stderr that are remembered."""
LONGEST_LINE = 1 << 16
"""Bytes of a line that wait for its end; a longer one is shown in pieces."""

_CANNOT_TAKE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})
"""Errors of a disk that cannot take a log just now."""
_CHUNK = 1 << 16
_FLUSH = 2.0
_FILES = {Stream.OUT: "stdout.log", Stream.ERR: "stderr.log"}


class Lines:
    """Cuts a stream into whole lines and puts a prefix before each.

    A carriage return ends a line, too, or a progress bar would be held back until it is full.
    """

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._rest = b""
        self._returned = False

    def feed(self, data: bytes) -> bytes:
        """All lines that ``data`` completes; the rest waits for its end."""
        shown = []
        if self._returned and data.startswith(b"\n"):  # the second half of a line end that was cut in two
            shown.append(b"\n")
            data = data[1:]
        lines = (self._rest + data).splitlines(keepends=True)
        self._rest = lines.pop() if lines and not lines[-1].endswith((b"\n", b"\r")) else b""
        self._returned = data.endswith(b"\r")
        shown += [self._prefix + line for line in lines]
        if len(self._rest) >= LONGEST_LINE:
            shown.append(self.finish())
        return b"".join(shown)

    def finish(self) -> bytes:
        """What waits, as a line."""
        rest, self._rest = self._rest, b""
        return self._prefix + rest + b"\n" if rest else b""


class Filtered:
    """Lines that contain one of ``needles``, copied to a file that all ranks of a round share.

    Args:
        needles: Texts; a line with any of them is copied.
        file: A descriptor that appends, so that lines of several ranks stay whole; closed with this object.
        path: Its name.
    """

    def __init__(self, needles: Sequence[str], file: int, path: Path) -> None:
        self._needles = [needle.encode() for needle in needles]
        self.path = path
        self._file = file
        self._lines = Lines(b"")

    def feed(self, data: bytes) -> None:
        """Copy what matches of the lines that ``data`` completes.

        Raises:
            OSError: The file cannot take it.
        """
        self._copy(self._lines.feed(data))

    def close(self) -> None:
        """The stream is over: its last line may lack an end."""
        with contextlib.suppress(OSError):
            self._copy(self._lines.finish())
        os.close(self._file)

    def _copy(self, lines: bytes) -> None:
        found = [line for line in lines.splitlines(keepends=True) if any(needle in line for needle in self._needles)]
        if found:
            write_all(self._file, b"".join(found))


class Pump:
    """One pipe from a worker, and where its bytes go. The pump thread's; others only look at ``tail`` and ``ended``."""

    def __init__(
        self,
        pipe: int,
        file: int | None,
        path: Path,
        console: Console | None,
        lines: Lines | None,
        report: Callable[[str], None],
        filtered: Filtered | None = None,
    ) -> None:
        self.pipe = pipe
        self._filtered = filtered
        self.tail = b""
        """The last ``TAIL`` bytes, and one more that tells whether they begin a line. Replaced, never changed."""
        self.ended = threading.Event()
        self._file, self._path, self._console, self._lines, self._report = file, path, console, lines, report
        self._reported: set[Path] = set()

    def transfer(self) -> bool:
        """Pass on what is there; False at the end of the stream."""
        try:
            data = os.read(self.pipe, _CHUNK)
        except BlockingIOError:
            return True
        if data:
            self.tail = (self.tail + data)[-TAIL - 1 :]
            self._keep(data)
        self._show(data if self._lines is None else self._lines.feed(data))
        return bool(data)

    def close(self) -> None:
        """The stream is over, or nobody wants the rest of it."""
        if self._lines is not None:
            self._show(self._lines.finish())
        os.close(self.pipe)
        if self._file is not None:
            os.close(self._file)
        if self._filtered is not None:
            self._filtered.close()
        self.ended.set()

    def _show(self, data: bytes) -> None:
        if data and self._console is not None:
            self._console.write(data)

    def _keep(self, data: bytes) -> None:
        if self._file is not None:
            with self._reporting(self._path):
                write_all(self._file, data)
        if self._filtered is not None:
            with self._reporting(self._filtered.path):
                self._filtered.feed(data)

    @contextlib.contextmanager
    def _reporting(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            if path not in self._reported:
                self._reported.add(path)
                self._report(f"{path} is not complete: {exc.strerror}; the worker goes on")


class WorkerStreams:
    """One worker's stdout and stderr, as the agent has them.

    Attributes:
        stdout: The descriptor to give to the worker, or None to let it have the agent's own.
        stderr: The same.
        stderr_path: The file in which its stderr is kept, or None.
    """

    def __init__(self, given: dict[Stream, int | None], pumps: dict[Stream, Pump], stderr_path: Path | None) -> None:
        self.stdout, self.stderr = given[Stream.OUT], given[Stream.ERR]
        self.stderr_path = None if stderr_path is None else str(stderr_path)
        self.pumps = pumps

    def close(self) -> None:
        """Close the agent's copies of the worker's ends; call it once the worker was asked for."""
        for fd in (self.stdout, self.stderr):
            if fd is not None:
                os.close(fd)
        self.stdout = self.stderr = None

    def tail(self) -> str:
        """The last whole lines of stderr, 4 KiB at most; of a longer line, its end."""
        return last_lines(self.pumps[Stream.ERR].tail, TAIL)


@dataclass(frozen=True, slots=True)
class _CatchUp:
    """The pump thread is asked to read these, and to say when it has."""

    pumps: tuple[Pump, ...]
    done: threading.Event


class Output:
    """All workers' streams of one agent.

    Args:
        redirects: The streams of each local rank that go to a file only.
        tee: Those that go to a file and, with a prefix, to the console; where both name a stream, this holds.
        keep: Whether a stream that neither names is kept in a file as well.
        shown: The local ranks that the console shows, the others' streams going to files only; None for all.
        filters: For each stream the texts whose lines are copied to a file of their own; none where it is empty.
        report: Told in words what cannot be kept or shown, once for each file or console; called from other threads.
        console_out: Where workers' stdout is shown.
        console_err: Where their stderr is.
    """

    def __init__(
        self,
        *,
        redirects: StreamMap,
        tee: StreamMap,
        report: Callable[[str], None],
        keep: bool = False,
        shown: Collection[int] | None = None,
        filters: Mapping[Stream, Sequence[str]] = MappingProxyType({}),
        console_out: int = 1,
        console_err: int = 2,
    ) -> None:
        self._redirects, self._tee, self._keep, self._report = redirects, tee, keep, report
        self._shown, self._filters = shown, filters
        self._consoles = {Stream.OUT: Console(console_out, report), Stream.ERR: Console(console_err, report)}
        self._selector = selectors.DefaultSelector()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._new: queue.SimpleQueue[Pump | _CatchUp] = queue.SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="elastic-output", daemon=True)
        self._thread.start()

    def open(self, *, rank: int, local_rank: int, directory: Path, prefix: str | None = None) -> WorkerStreams:
        """Make the streams of a worker that is about to be started; its files will be in ``directory``.

        Lines that ``filters`` name go to ``filtered_stdout.log`` and ``filtered_stderr.log`` in the folder above.

        A file that its disk cannot take is reported, and its stream goes on without it.

        Raises:
            OSError: A file cannot be opened for another reason (a symbolic link is not followed), or no descriptor is
                left.
        """
        given: dict[Stream, int | None] = {}
        pumps: dict[Stream, Pump] = {}
        kept: dict[Stream, Path] = {}
        shown = self._shown is None or local_rank in self._shown
        with contextlib.ExitStack() as undo:
            for stream, name in _FILES.items():
                teed = shown and stream in self._tee[local_rank]
                redirected = not teed and (stream in self._redirects[local_rank] or not shown)
                path, file, filtered = directory / name, None, None
                if (teed or redirected or self._keep) and (file := self._open_log(path)) is not None:
                    kept[stream] = path
                    undo.callback(os.close, file)
                if needles := self._filters.get(stream):
                    matches = directory.parent / f"filtered_{name}"
                    if (copies := self._open_log(matches)) is not None:
                        undo.callback(os.close, copies)
                        filtered = Filtered(needles, copies, matches)
                if stream is Stream.OUT and not (teed or redirected) and file is None and filtered is None:
                    given[stream] = None
                else:
                    reading, writing = _pipe()
                    undo.callback(_close, reading, writing)
                    given[stream] = writing
                    lines = Lines((prefix or f"[rank{rank}]:").encode()) if teed else None
                    console = None if redirected else self._consoles[stream]
                    pumps[stream] = Pump(reading, file, path, console, lines, self._report, filtered)
            undo.pop_all()
        for pump in pumps.values():
            self._new.put(pump)
        os.eventfd_write(self._bell, 1)
        return WorkerStreams(given, pumps, kept.get(Stream.ERR))

    def _open_log(self, path: Path) -> int | None:
        try:
            return _open_log(path)
        except OSError as exc:
            if exc.errno not in _CANNOT_TAKE:
                raise
            self._report(f"{path} cannot be written: {exc.strerror}; the worker runs without it")
            return None

    def drain(self, streams: WorkerStreams, timeout: float) -> None:
        """Wait until all that an ended worker wrote was read, ``timeout`` seconds at most: its children may live on."""
        deadline = time.monotonic() + timeout
        for pump in streams.pumps.values():
            pump.ended.wait(max(0.0, deadline - time.monotonic()))

    def catch_up(self, workers: Iterable[WorkerStreams], timeout: float) -> None:
        """Wait until what living workers have written by now was read, ``timeout`` seconds at most."""
        request = _CatchUp(tuple(pump for streams in workers for pump in streams.pumps.values()), threading.Event())
        self._new.put(request)
        os.eventfd_write(self._bell, 1)
        request.done.wait(timeout)

    def close(self, timeout: float = _FLUSH) -> None:
        """Pass on what has arrived and stop; what is stuck is given up after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        self._closing = True
        os.eventfd_write(self._bell, 1)
        self._thread.join(timeout)
        if not self._thread.is_alive():
            os.close(self._bell)  # here, and not when it ends: it may end before it is rung for
        for console in self._consoles.values():
            console.close(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        """The pump thread, until it is told to stop and finds nothing to read."""
        while True:
            closing = self._closing
            ready = self._selector.select(0 if closing else None)
            pumps = [key.data for key, _ in ready if key.data is not None]
            if len(pumps) < len(ready):
                self._take_new()
            elif closing and not pumps:
                break
            self._transfer(pumps)
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._end(key.data)
        self._selector.close()

    def _take_new(self) -> None:
        os.eventfd_read(self._bell)
        while not self._new.empty():
            match self._new.get():
                case Pump() as pump:
                    self._selector.register(pump.pipe, selectors.EVENT_READ, pump)
                case _CatchUp(pumps, done):
                    self._transfer(pumps)  # of each pipe all that it can hold
                    done.set()

    def _transfer(self, pumps: Sequence[Pump]) -> None:
        for pump in pumps:
            if not pump.ended.is_set() and not pump.transfer():
                self._end(pump)

    def _end(self, pump: Pump) -> None:
        self._selector.unregister(pump.pipe)
        pump.close()


def _open_log(path: Path) -> int:
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    never_waiting = os.O_NONBLOCK  # as opening a FIFO would
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | never_waiting, 0o640)
    os.set_blocking(fd, True)
    return fd


def _pipe() -> tuple[int, int]:
    """A pipe whose reading end never blocks; the writing end is a worker's, and has to."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reading, False)
    return reading, writing


def _close(*descriptors: int) -> None:
    for fd in descriptors:
        os.close(fd)
