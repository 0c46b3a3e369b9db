"""The newest progress of each local worker, from its reports and its output.

The pump threads feed :class:`StreamReader` with what they read, the agent's loop feeds :meth:`ProgressReader.observe`
with reports. Both take microseconds. What follows from progress is posted to the loop as an event.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from elastic_core.events import Event, Field, Level
from elastic_core.progress import BUILT_IN, Checkpoint, Expressions, Progress
from elastic_core.progress_lines import LineReader, Recognizer, Scanner
from elastic_core.protocol.node_events import Checkpointed
from elastic_core.protocol.roster import Reached

PROGRESS_EVENT_SECONDS = 10.0  # between two events ``progress`` of a node, at least
MATCH_MAX_SECONDS = 0.1  # of CPU, for one line; an expression of a user that takes longer is not used any more

READ_INTERVAL_SECONDS = 0.1  # in which the output of a stream is collected after it was read
UNREAD_MAX_BYTES = 1 << 16  # of output that is collected


@dataclass(frozen=True, slots=True)
class StepSeen:
    """A worker of the round has come to another step."""

    round: int


@dataclass(frozen=True, slots=True)
class LossBroken:
    """The loss of a worker has been nan or infinite for as many readings as ``--nan_stop`` allows."""

    round: int
    rank: int
    message: str


NOTHING = Progress()
ProgressEvent: TypeAlias = "StepSeen | LossBroken | Checkpointed"


@dataclass(slots=True)
class _Rank:
    """The progress of one worker. Instants are on the monotonic clock, in seconds."""

    progress: Progress = NOTHING
    counted: int | None = None  # the newest step that counts on over rounds
    lines: LineReader | None = None  # once it has printed anything
    at: float | None = None  # when something moved last
    stepped_at: float | None = None  # when its position last changed
    broken: int = 0  # readings in a row whose loss is nan or infinite
    broken_since: str = ""
    loss_position: float | None = None  # of the last loss


class ProgressReader:
    """Knows the newest progress of the workers of the current round. Any thread may call its methods.

    Args:
        notices_checkpoints: Whether every checkpoint of the script is noticed, also the first one.
        nan_stop: After how many nan or infinite losses in a row a worker fails; 0 for never.
        post: Gives the agent's loop an event.
        now: Seconds, monotonic.
        cpu: The CPU seconds of the calling thread.
    """

    def __init__(
        self,
        expressions: Expressions = BUILT_IN,
        *,
        notices_checkpoints: bool = False,
        nan_stop: int = 0,
        publish: Callable[[Event], None] = lambda event: None,
        post: Callable[[ProgressEvent], None] = lambda event: None,
        now: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._nan_stop, self._publish, self._post, self._now, self._cpu = nan_stop, publish, post, now, cpu
        self._notices_checkpoints = notices_checkpoints
        self._recognizer = Recognizer(expressions)
        self._lock = threading.Lock()
        self._round = 0
        self._ranks: dict[int, _Rank] = {}
        self._streams: list[StreamReader] = []
        self._step_seen = False
        self._reached: Reached | None = None  # how far the newest round came of which anything is known
        self._told_pattern = ""
        """The name of the pattern that was published last."""
        self._said: tuple[int, int | None, float] | None = None
        """The rank, step and instant of the last event ``progress``."""
        self._checkpoint: tuple[int | None, float] | None = None
        self._newest_checkpoint, self._made_at = -1, now()
        """The greatest step of all checkpoints that were noticed; no checkpoint from before this reader is new."""
        self._has_new_checkpoint = False
        self._longest: float | None = None
        self.look_for_checkpoint: Callable[[], None] | None = None
        """Looks at the disk for the last checkpoint of a round whose workers have ended, as long as the disk takes.
        None if it is not known where checkpoints are."""
        self.wants_all_output = expressions.progress is not None or expressions.checkpoint is not None
        """Whether the agent has to read streams that it would otherwise leave to the worker."""

    @property
    def needles(self) -> tuple[bytes, ...] | None:
        """Texts of which a line must have one to be worth reading; None for any line."""
        return self._recognizer.needles

    def seconds(self) -> float:
        """Return the monotonic time."""
        return self._now()

    def begin(self, number: int) -> None:
        """Begin a round: nothing is known of its workers. What they print is known already, if it was found out."""
        self.reached()
        with self._lock:
            self._round, self._step_seen, self._said = number, False, None
            self._has_new_checkpoint = False
            self._ranks.clear()
            self._streams.clear()
        if self._notices_checkpoints:
            self._post(Checkpointed(number, self._now(), saved=False))

    def stream(self, rank: int) -> StreamReader:
        """Return the reader of a stream of a worker of the current round."""
        stream = StreamReader(self, self._round, rank)
        with self._lock:
            self._streams.append(stream)
        return stream

    def newest(self) -> Mapping[int, tuple[Progress, float]]:
        """Return the newest progress of each rank that has made any, and how many seconds ago it last moved."""
        self._catch_up()
        now = self._now()
        with self._lock:
            return {
                rank: (known.progress, now - known.at) for rank, known in self._ranks.items() if known.at is not None
            }

    def step(self, rank: int) -> tuple[int | None, bool]:
        """Return the newest step of a worker, and whether it counts on over rounds; of one without, the others'."""
        self._catch_up()
        with self._lock:
            every = {rank: known for rank, known in self._ranks.items() if known.progress.step is not None}
            found = [every[rank]] if rank in every else [*every.values()]
            step = max((known.progress.step for known in found if known.progress.step is not None), default=None)
            return step, all(known.counted == known.progress.step for known in found)

    def reached(self) -> Reached | None:
        """Return how far the round has come here; while nothing is known of it, how far the one before had come."""
        self._catch_up()
        with self._lock:
            step = max((known.counted for known in self._ranks.values() if known.counted is not None), default=None)
            if step is not None or self._step_seen or self._has_new_checkpoint:
                self._reached = Reached(self._round, step, self._step_seen, self._has_new_checkpoint)
            return self._reached

    def last_checkpoint(self) -> tuple[int | None, float] | None:
        """Return the step of the last checkpoint, as far as it is known, and its age in seconds; None if none is known.

        It may be one of an earlier round.
        """
        with self._lock:
            return None if self._checkpoint is None else (self._checkpoint[0], self._now() - self._checkpoint[1])

    def longest_interval(self) -> float | None:
        """Return the longest time in seconds between two steps of a worker that followed each other, in this run."""
        with self._lock:
            return self._longest

    def observe(self, rank: int, progress: Progress) -> None:
        """Take progress of a worker of the current round that it has reported itself."""
        self._take(self._round, rank, [progress], [], is_read=False)

    def note_checkpoint(self, checkpoint: Checkpoint, age: float = 0.0) -> None:
        """Take a checkpoint that was saved ``age`` seconds ago."""
        with self._lock:
            post = self._note_checkpoint(checkpoint, age)
        self._post(post)

    def read(self, number: int, rank: int, lines: Sequence[str], at: float | None = None) -> None:
        """Read lines that a worker of round ``number`` printed at the instant ``at``, or just now if ``at`` is None."""
        found: list[Progress] = []
        checkpoints: list[Checkpoint] = []
        with self._lock:
            if number != self._round:
                return
            known = self._known(rank)
            reader = known.lines = known.lines or LineReader(self._recognizer)
            for line in lines:
                began = self._cpu() if self.wants_all_output else 0.0
                if (progress := reader.read(line)) is not None:
                    found.append(progress)
                if (checkpoint := reader.read_checkpoint(line)) is not None:
                    checkpoints.append(checkpoint)
                if self.wants_all_output and self._cpu() - began > MATCH_MAX_SECONDS:
                    raise TimeoutError(f"a line took more than {MATCH_MAX_SECONDS:g} s: {line[-80:]!r}")
        self._take(number, rank, found, checkpoints, is_read=True, at=at)

    def _catch_up(self) -> None:
        """Read the newest lines for which there was no time when they came."""
        with self._lock:
            streams = tuple(self._streams)
        for stream in streams:
            stream.catch_up()

    def _known(self, rank: int) -> _Rank:
        return self._ranks.setdefault(rank, _Rank())

    def _take(
        self,
        number: int,
        rank: int,
        found: Sequence[Progress],
        checkpoints: Sequence[Checkpoint],
        *,
        is_read: bool,
        at: float | None = None,
    ) -> None:
        news: list[Event] = []
        posts: list[ProgressEvent] = []
        with self._lock:
            if number != self._round:
                return
            for progress in found:
                posts += self._update(rank, self._known(rank), progress, self._now() if at is None else at)
            for checkpoint in checkpoints:
                posts.append(self._note_checkpoint(checkpoint, 0.0))
            if found:
                news += self._pattern_event(rank) if is_read else []
                news += self._progress_event(rank)
        for event in news:
            self._publish(event)
        for post in posts:
            self._post(post)

    def _update(self, rank: int, known: _Rank, progress: Progress, now: float) -> list[ProgressEvent]:
        before = known.progress
        known.progress = before.updated(progress)
        if progress.step is not None and progress.counts_on:
            known.counted = progress.step
        posts: list[ProgressEvent] = []
        if progress == NOTHING or progress.position is None:
            known.at = now
        if known.progress.position != before.position:
            if known.stepped_at is not None:
                self._longest = max(now - known.stepped_at, self._longest or 0.0)
                if not self._step_seen:
                    self._step_seen = True
                    posts.append(StepSeen(self._round))
            known.at = known.stepped_at = now
        if progress.loss is not None and (progress.position is None or progress.position != known.loss_position):
            known.loss_position = progress.position
            posts += self._count_loss(rank, known, progress)
        return posts

    def _count_loss(self, rank: int, known: _Rank, progress: Progress) -> list[ProgressEvent]:
        if not progress.is_broken:
            known.broken = 0
            return []
        known.broken += 1
        if known.broken == 1:
            known.broken_since = _describe_position(known.progress)
        if not self._nan_stop or known.broken != self._nan_stop:
            return []
        since = f"since {known.broken_since}" if known.broken_since else f"in {known.broken} readings in a row"
        return [LossBroken(self._round, rank, f"the loss is {progress.loss} {since}")]

    def _note_checkpoint(self, checkpoint: Checkpoint, age: float) -> Checkpointed:
        steps = (known.progress.step for known in self._ranks.values())
        reached = max((value for value in steps if value is not None), default=None)
        step = reached if checkpoint.step is None and not age else checkpoint.step
        # A file without a step in its name is of a step that was reached already, if steps are known at all.
        position = reached if step is None else step
        at = self._now() - age
        newer = at >= self._made_at and (position is None or position > self._newest_checkpoint)
        self._newest_checkpoint = max(self._newest_checkpoint, -1 if position is None else position)
        self._has_new_checkpoint |= newer
        self._checkpoint = (step, at)
        return Checkpointed(self._round, at, newer=newer)

    def _pattern_event(self, rank: int) -> list[Event]:
        chosen = self._recognizer.chosen
        name = "--progress_pattern" if chosen is None else chosen.name
        if name == self._told_pattern:
            return []
        self._told_pattern = name
        where = self._known(rank).progress.describe() or "no step yet"
        message = f"progress is read from the workers' output, as {name} says it: rank {rank} is at {where}"
        return [Event("progress_pattern", message, fields={"pattern": name, "rank": rank})]

    def _progress_event(self, rank: int) -> list[Event]:
        now, known = self._now(), self._known(rank)
        if self._said is not None and now - self._said[2] < PROGRESS_EVENT_SECONDS:
            return []
        rate = None
        step = known.progress.step
        if self._said is not None and self._said[0] == rank and step is not None and self._said[1] is not None:
            rate = round((step - self._said[1]) / (now - self._said[2]), 6)
        self._said = (rank, step, now)
        fields: dict[str, Field] = {
            "rank": rank,
            "step": step,
            "loss": known.progress.loss,
            "samples": known.progress.samples,
            "epoch": known.progress.epoch,
            "steps_per_s": rate,
        }
        message = f"rank {rank}: {known.progress.describe() or 'moves'}"
        return [Event("progress", message, Level.DEBUG, fields)]

    def give_up(self, why: str) -> None:
        """Report that the output of a worker is not read any more."""
        self._publish(Event("progress_unread", f"progress is not read from this output any more: {why}", Level.WARNING))


def _describe_position(progress: Progress) -> str:
    for name, value in (("step", progress.step), ("sample", progress.samples), ("epoch", progress.epoch)):
        if value is not None:
            return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
    return ""


class StreamReader:
    """Reads one stream of a worker for its progress. The pump thread feeds it; any thread may have it catch up.

    A defect here, or an expression that takes long, ends the reading, and not the output.

    Args:
        reader: Takes what is read.
        number: The worker's round.
    """

    def __init__(self, reader: ProgressReader, number: int, rank: int) -> None:
        self._reader, self._round, self._rank = reader, number, rank
        self._lock = threading.Lock()
        self._scanner = Scanner()
        self._unread: list[bytes] = []
        self._size = 0  # of the unread data, in bytes
        self._at = -math.inf  # when the last data came
        self._read_at = -math.inf  # when data was read last
        self._is_off = False

    def feed(self, data: bytes) -> None:
        """Take what the worker has written. It is read at once, or together with what comes within the next 0.1 s."""
        if self._is_off:
            return
        with self._lock:
            self._at = now = self._reader.seconds()
            self._unread.append(data)
            self._size += len(data)
            if now - self._read_at >= READ_INTERVAL_SECONDS or self._size >= UNREAD_MAX_BYTES:
                self._read()

    def catch_up(self) -> None:
        """Read all that has come, and the newest line for which there was no time when it came."""
        with self._lock:
            if self._unread:
                self._read()
            self._read_lines(self._scanner.take_waiting)

    def finish(self) -> None:
        """Read what is left at the end of the stream."""
        self.catch_up()
        with self._lock:
            self._read_lines(lambda: (self._scanner.finish(self._reader.needles), self._at))

    def _read(self) -> None:
        data, at = b"".join(self._unread), self._at
        self._unread, self._size, self._read_at = [], 0, at
        self._read_lines(lambda: (self._scanner.feed(data, self._reader.needles, at), at))

    def _read_lines(self, scan: Callable[[], tuple[Sequence[str], float]]) -> None:
        if self._is_off:
            return
        try:
            lines, at = scan()
            if lines:
                self._reader.read(self._round, self._rank, lines, at)
        except Exception as exc:
            self._is_off = True
            self._reader.give_up(f"{type(exc).__name__}: {exc}")
