"""Reads progress from the streams of workers."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

from elastic_core.events import Event
from elastic_core.monitors import OutputReader, RunningRound
from elastic_core.progress import Checkpoint, Progress
from elastic_progress.lines import LineReader, Recognizer, Scanner
from elastic_progress.patterns import BUILT_IN, Expressions

MATCH_MAX_SECONDS = 0.1  # of CPU, for one line; an expression of a user that takes longer is not used any more
READ_INTERVAL_SECONDS = 0.1  # in which the output of a stream is collected after it was read
UNREAD_MAX_BYTES = 1 << 16  # of output that is collected


class ProgressReader:
    """Reads the lines of the workers of the current round. Any thread may call its methods."""

    def __init__(
        self,
        expressions: Expressions = BUILT_IN,
        *,
        now: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self.now, self._cpu = now, cpu
        self.recognizer = Recognizer(expressions)
        self._lock = threading.Lock()
        self._lines: dict[int, LineReader] = {}  # by rank
        self._round: RunningRound | None = None
        self._reporting = threading.local()
        """In a thread that reports what was read, ``on`` is True: other progress comes from the script itself."""
        self._script_reports = False
        self._published_pattern = ""  # the name of the newest one
        self._is_own = expressions.progress is not None or expressions.checkpoint is not None
        """True if the user has given an expression: all streams are read, and the time of a match is limited."""

    def begin(self, round: RunningRound) -> None:
        """Read a round. What workers print is known already, if it was found out."""
        with self._lock:
            self._round = round
            self._lines.clear()
        round.follow_progress(self._note_source)
        round.read_output(lambda rank, *_: StreamReader(self, round, rank), every_stream=self._is_own)

    def read(self, round: RunningRound, rank: int, lines: Sequence[str], at: float) -> None:
        """Read lines that a worker of a round printed at the instant ``at``."""
        found: list[Progress] = []
        checkpoints: list[Checkpoint] = []
        with self._lock:
            if round is not self._round:
                return
            reader = self._lines.setdefault(rank, LineReader(self.recognizer))
            for line in lines:
                began = self._cpu() if self._is_own else 0.0
                if (progress := reader.read(line)) is not None:
                    found.append(progress)
                if (checkpoint := reader.read_checkpoint(line)) is not None:
                    checkpoints.append(checkpoint)
                if self._is_own and self._cpu() - began > MATCH_MAX_SECONDS:
                    raise TimeoutError(f"a line took more than {MATCH_MAX_SECONDS:g} s: {line[-80:]!r}")
        if found:
            self._publish_pattern(round, rank, found[-1])
        self._reporting.on = True
        try:
            for progress in found:
                round.report(rank, progress, at)
        finally:
            self._reporting.on = False
        for checkpoint in checkpoints:
            round.report_checkpoint(checkpoint)

    def _note_source(self, rank: int, progress: Progress) -> None:
        """Note that the script reports its steps itself (``TrainState``, ``elastic.report``)."""
        self._script_reports |= progress.step is not None and not getattr(self._reporting, "on", False)

    def _publish_pattern(self, round: RunningRound, rank: int, progress: Progress) -> None:
        chosen = self.recognizer.chosen
        name = "--progress_pattern" if chosen is None else chosen.name
        if name == self._published_pattern or (self._script_reports and not self._is_own):
            return
        self._published_pattern = name
        where = progress.describe() or "no step yet"
        by = name if chosen is None else f'the pattern "{name}"'
        message = f"rank {rank} is at {where}, read from its output by {by}"
        round.publish(Event("progress_pattern", message, fields={"pattern": name, "rank": rank}))


class StreamReader(OutputReader):
    """Reads one stream of a worker for its progress. An expression that takes long ends the reading."""

    def __init__(self, reader: ProgressReader, round: RunningRound, rank: int) -> None:
        self._reader, self._round, self._rank = reader, round, rank
        self._lock = threading.Lock()
        self._scanner = Scanner()
        self._unread: list[bytes] = []
        self._size = 0  # of the unread data, in bytes
        self._at = -math.inf  # when the last data came
        self._read_at = -math.inf  # when data was read last

    def feed(self, data: bytes) -> None:
        """Take what the worker has written. It is read at once, or together with what comes within the next 0.1 s."""
        with self._lock:
            self._at = now = self._reader.now()
            self._unread.append(data)
            self._size += len(data)
            if now - self._read_at >= READ_INTERVAL_SECONDS or self._size >= UNREAD_MAX_BYTES:
                self._read()

    def catch_up(self) -> None:
        """Read all that has come, and the newest line for which there was no time when it came."""
        with self._lock:
            if self._unread:
                self._read()
            self._take(*self._scanner.take_waiting())

    def finish(self) -> None:
        """Read what is left at the end of the stream."""
        self.catch_up()
        with self._lock:
            self._take(self._scanner.finish(self._reader.recognizer.needles), self._at)

    def _read(self) -> None:
        data, at = b"".join(self._unread), self._at
        self._unread, self._size, self._read_at = [], 0, at
        self._take(self._scanner.feed(data, self._reader.recognizer.needles, at), at)

    def _take(self, lines: Sequence[str], at: float) -> None:
        if lines:
            self._reader.read(self._round, self._rank, lines, at)
