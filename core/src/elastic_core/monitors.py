"""The public view of a round on this node, for plugins.

A plugin that implements ``elastic_round_starts`` is a *monitor*. It gets a :class:`RunningRound`, registers callbacks
there, and starts its own threads for work that blocks. All methods may be called from any thread. Once the round is
closed, no method sends a signal, or changes the progress of a later round.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from elastic_core.config.parse import Stream
from elastic_core.errors import in_one_line
from elastic_core.events import Event, Level
from elastic_core.progress import Checkpoint, Progress
from elastic_core.progress_table import ProgressTable
from elastic_core.protocol.entries import Place
from elastic_core.protocol.node_events import Asked
from elastic_core.protocol.questions import decode
from elastic_core.questions import ANSWER_MAX_BYTES, VALUE_MAX_BYTES, check_name, encode
from elastic_core.threads import asked, bounded

LAST_WORDS_SECONDS, LAST_WORDS_MAX_CHARACTERS = 0.5, 400  # of a monitor, before workers are stopped
FOLLOW_SECONDS = 20.0  # how long a follower of reports may take
NOTE_MAX_CHARACTERS = 200
NOTES_MAX = 16
"""Limits of what all monitors of a node may write into its row: other nodes read it with every change."""
LINE_MAX_BYTES = 1 << 16
HELD_MAX_BYTES = 1 << 20  # of what a shape may hold back, kept to be shown if it raises
OVERDUE_SECONDS = 0.1  # between two calls of :meth:`Shape.overdue`, at least
EXPLANATION_MAX_CHARACTERS, EXPLANATIONS_MAX = 1500, 2  # of a round; a failure has 4 KiB for all its lines
_Found = TypeVar("_Found")
OpenReader: TypeAlias = Callable[[int, Stream, str], "OutputReader | None"]


class OutputReader(ABC):
    """Reads one stream of a worker: its stdout, its stderr, or both where the worker has a terminal.

    ``feed`` and ``finish`` are called by the thread that moves the output of all workers, so each call must return
    within microseconds. A reader that raises is reported, and gets no more output of this stream.
    """

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Take the bytes that the worker has just written. A chunk may end within a line."""

    def catch_up(self) -> None:  # noqa: B027  (it does nothing by default)
        """Read all that was fed and put off: the progress of the workers is asked for. Called from any thread."""

    def finish(self) -> None:  # noqa: B027  (it does nothing by default)
        """Take the end of the stream."""


class LineReader(OutputReader):
    """Calls ``take`` with each whole line of a stream, without its end; also after a carriage return, as of a bar.

    Of a line that is longer than ``most`` bytes it gets the end.
    """

    def __init__(self, take: Callable[[str], None], most: int = LINE_MAX_BYTES) -> None:
        self._take, self._most, self._rest = take, most, b""

    def feed(self, data: bytes) -> None:
        """Take bytes, and pass on the lines that end in them."""
        *lines, rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        self._rest = rest[-self._most :]
        for line in filter(None, lines):
            self._take(line.decode(errors="replace"))

    def finish(self) -> None:
        """Pass on a last line without an end."""
        if self._rest:
            self._take(self._rest.decode(errors="replace"))
            self._rest = b""


class Shape:
    """The shape that a stream gets before it is shown. This class leaves it unchanged.

    The methods are called by the thread that moves the output of all workers, so each must return within milliseconds.
    """

    due = math.inf
    """When :meth:`overdue` is to be called, by the monotonic clock: infinite as long as nothing is held back."""

    def feed(self, data: bytes) -> bytes:
        """Return all that can be shown once ``data`` has come, and hold the rest back."""
        return data

    def overdue(self) -> bytes:
        """Return the text that has waited for too long, to be shown."""
        return b""

    def finish(self) -> bytes:
        """Return what waits at the end of the stream."""
        return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One worker's place in one round, from which its environment is made: a local rank of a node with ``place``."""

    run_id: str
    run_uid: str
    round: int
    restart_count: int
    max_restarts: int | None
    role: str
    place: Place
    local_rank: int
    master_addr: str
    master_port: int
    error_file: str  # where torch's ``@record`` writes the exception as JSON; read when the worker fails
    use_agent_store: bool = False  # whether a store listens at the master's address, so that rank 0 opens none

    @property
    def rank(self) -> int:
        """Its rank among all workers of the round."""
        return self.place.first_rank + self.local_rank


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker, as it was when :attr:`RunningRound.workers` was read."""

    rank: int  # in the job
    local_rank: int  # on this node
    pid: int | None  # of its process; None until that has started
    exit_code: int | None  # as of :class:`subprocess.Popen`; None while it runs
    is_over: bool  # whether its program has ended, although its interpreter may still run
    tails: tuple[bytes, ...] = ()  # the end of each stream that the agent reads; another object after each output
    hides_stdout: bool = False  # whether it writes to the agent's own stdout, which the agent does not read
    initialized: bool = False  # whether its process group is there
    ended_at: float = 0.0  # when it was reaped, by the monotonic clock; 0 while it runs

    @property
    def is_running(self) -> bool:
        """Return True if its process has started and has not ended."""
        return self.pid is not None and self.exit_code is None


@dataclass(frozen=True, slots=True)
class PlannedStop:
    """A planned stop of a round, as for a preemption: all workers of this node have ended. None is for not known."""

    had_s: float  # seconds that the workers had from the notice on
    took_s: float  # seconds from the notice until the last of them had ended
    step: int | None = None  # the newest that a worker of this node had reached
    checkpoint: tuple[int | None, float] | None = None  # the step of the newest, and its age in seconds at the end
    snapshot_step: int | None = None  # of the newest snapshot that workers keep in memory


@dataclass(frozen=True, slots=True)
class RankFailed:
    """A monitor fails a rank. For the agent's loop."""

    round: int
    rank: int
    name: str
    message: str
    kill: bool


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal that a monitor has sent to a process, and why."""

    signum: int
    why: str


@dataclass
class RunningRound:
    """A round that is about to start workers on this node."""

    number: int
    run_uid: str  # the run's own random id
    members: Sequence[str]  # the ids of its nodes in rank order
    directory: Path  # its folder on this node, for files of a monitor, too
    progress: ProgressTable = field(default_factory=ProgressTable, repr=False)
    post: Callable[[object], None] = field(default=lambda event: None, repr=False)
    publish: Callable[[Event], None] = field(default=lambda event: None, repr=False)  # publishes an event of this node
    look: Callable[[], Sequence[WorkerView]] = field(default=tuple, repr=False)
    closed: threading.Event = field(default_factory=threading.Event, repr=False)
    """Set once all workers of the round are gone, or the agent ends."""
    notes: dict[str, str] = field(default_factory=dict, repr=False)
    explanations: list[str] = field(default_factory=list, repr=False)
    signals: dict[int, Signal] = field(default_factory=dict, repr=False)
    readers: OutputReaders = field(init=False, repr=False)
    callbacks: MonitorCallbacks = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.readers, self.callbacks = OutputReaders(self.publish), MonitorCallbacks(self.publish)

    # Observation

    @property
    def workers(self) -> Sequence[WorkerView]:
        """The workers of this node, in the order of their local ranks; empty once the round is closed."""
        return () if self.closed.is_set() else self.look()

    def read_output(self, open: OpenReader, *, every_stream: bool = False, apart: bool = False) -> None:
        """Read what the workers write. Call it in the hook itself: the workers start right after it.

        ``open`` is called for each stream that the agent reads: with the rank of the worker, the stream (ALL for a
        terminal that is both), and the prefix that ``--tee`` gives its lines. It returns the reader. With
        ``every_stream`` the agent reads all streams. By default a single worker that has the agent's own stdout, since
        nothing keeps or changes that, keeps it. With ``apart`` stdout and stderr are two streams on a terminal, too. By
        default they are one there, which keeps their order.
        """
        self.readers.openers.append(Guarded(open, self.publish))
        self.readers.every_stream |= every_stream
        self.readers.apart |= apart

    def shape_console(self, open: Callable[[int, Path | None], Shape | None]) -> None:
        """Shape what a console of several workers shows of each one's stderr. Call it in the hook itself.

        ``open`` is called with the rank of a worker, and the file that keeps its stderr, if one does; it returns the
        shape, or None. Where stdout and stderr are one terminal, the shape gets both. It gets whole lines, unless one
        does not end in time, and b'' if no line is complete. If it raises, the error is reported, and its held text is
        shown.
        """
        self.readers.shapers.append(Guarded(open, self.publish))

    def follow_progress(self, take: Callable[[int, Progress], None]) -> None:
        """Have ``take(rank, progress)`` called for each progress that a rank reports, or that a monitor reports."""
        if not self.closed.is_set():
            self.progress.followers.append(Guarded(take, self.publish))

    def look_last(self, look: Callable[[PlannedStop], Event | None]) -> None:
        """Have ``look`` called on a thread after a planned stop, when all workers have ended; it has 0.2 s.

        If it returns an event, that is published, and ``verdict.json`` (elastic-operate) has the fields under its name.
        """
        self.callbacks.last_looks.append(Guarded(look, self.publish))

    def newest_progress(self) -> Mapping[int, tuple[Progress, float]]:
        """Return the newest progress of each rank that has made any, and how many seconds ago it last moved."""
        return {} if self.closed.is_set() else self.progress.newest()

    def longest_step(self) -> float | None:
        """Return the longest seconds between two steps in a row of a worker, without known pauses; None without any."""
        return self.progress.longest_step

    def follow_answers(self, name: str, take: Callable[[Any], object]) -> None:
        """Have ``take(report)`` called with each report on a question of this name, of any node (rule L14).

        The report is what ``elastic_sum_up_answers`` has returned on the leader. Followers are called one after the
        other on a thread of theirs, in the order in which they were registered, and may block for 20 s. The next report
        is passed on when all have returned, or have taken so long.
        """
        self.callbacks.followers.append((name, Guarded(take, self.publish)))

    def answer(self, name: str, find: Callable[[Any], Any]) -> None:
        """Have ``find(value)`` answer for this node whenever all nodes are asked a question of this name.

        It is called on a thread of the agent's, also for two questions at once, with the value of the question. It
        returns a JSON value of at most 48 KiB, within 5 s: a later answer does not count. Of several monitors the first
        one to call this answers: that of the plugin that was registered last.
        """
        check_name(name)
        self.callbacks.finders.setdefault(name, Guarded(find, self.publish))

    def before_stop(self, call: Callable[[], str], within: float = LAST_WORDS_SECONDS) -> None:
        """Have ``call()`` say, before the workers are stopped, for which of them a failed rank may have waited.

        It is called on a thread of the agent's if a failure elsewhere follows from the loss of a peer. It has
        ``within`` seconds, at most 0.5. The text, of at most 400 characters, becomes part of the failure.
        """
        self.callbacks.last_words.append((Guarded(call, self.publish), min(within, LAST_WORDS_SECONDS)))

    # Actions

    def report(self, rank: int, progress: Progress, at: float | None = None) -> None:
        """Report how far a rank has come, as ``elastic.report`` does in a script; ``at``: monotonic seconds."""
        self.progress.observe(rank, progress, number=self.number, at=at)

    def notice_checkpoints(self) -> None:
        """Declare that this monitor notices every checkpoint of the script, also the first one (rule L13)."""
        self.progress.notice_checkpoints(self.number)

    def report_checkpoint(self, checkpoint: Checkpoint, age: float = 0.0) -> None:
        """Report a checkpoint that was saved ``age`` seconds ago."""
        self.progress.note_checkpoint(checkpoint, age, number=self.number)

    def fail(self, rank: int, message: str, *, name: str = "", kill: bool = False) -> None:
        """Fail a living rank, and with it the round, unless that has failed or ends, or the rank is of another node.

        ``message`` says why, for people: ``rank 3 <message>``, or the text of the exception ``name``. Policies and
        people know the failure under that name. With ``kill`` the worker gets SIGKILL at once. Otherwise it is stopped
        as all others, with the usual grace.
        """
        self.post(RankFailed(self.number, rank, name, message, kill))

    def signal(self, pid: int, signum: int, why: str) -> None:
        """Send a signal to a process of a worker. If it ends that process, the failure tells ``why``."""
        if self.closed.is_set():
            return  # the process may be another one by now
        self.signals[pid] = Signal(signum, why)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)

    def ask(self, name: str, value: Any) -> None:
        """Ask all nodes of the round a question, which their monitors answer; None as the value: ask no longer.

        The leader takes it once: ask again after the report, which :meth:`follow_answers` passes on. A question of the
        same name that is open, or that another node asks, serves this node, too.

        A node asks 8 questions at once at most, and a round has 64 names of questions at most: others are ignored. The
        leader takes at most two questions a second.

        Raises:
            ValueError: The name has more than 32 characters, or the value, as JSON, more than 256 bytes.
        """
        check_name(name)
        self.post(Asked(self.number, name, None if value is None else encode(value, VALUE_MAX_BYTES)))

    def serve(self, kind: str, obey: Callable[[Mapping[str, Any], list[int]], str]) -> None:
        """Have ``obey(packet, descriptors)`` called for each packet of this ``type`` that a worker sends its agent.

        A packet is a JSON object with a ``type`` other than core's own (``elastic_core.worker.open_channel``), with at
        most two descriptors. Those that are kept are taken out of the list; the agent closes the others. It is called
        on the agent's loop and must return within a millisecond: why the packet is malformed, which is reported, or ''.
        As with :meth:`answer`, the first monitor to call this serves.
        """
        self.callbacks.servers.setdefault(kind, Guarded(obey, self.publish))

    def answer_snapshot(self, find: Callable[[], tuple[int, int] | None]) -> None:
        """Have ``find()`` return the round and step of the newest snapshot in memory, for ``elastic status``.

        It is called on the agent's loop every few seconds, also after the round, and must return within a millisecond.
        As with :meth:`answer`, the first monitor to call this answers.
        """
        self.callbacks.snapshot_finders.append(Guarded(find, self.publish))

    def explain(self, text: str, *, instead_of: str = "") -> None:
        """Have the first failure of this round tell these lines, too: 1,500 characters each, of the newest two.

        If ``instead_of`` is given, the new text replaces that former one; an empty ``text`` only removes it.
        """
        kept = [lines for lines in self.explanations if lines != instead_of[:EXPLANATION_MAX_CHARACTERS]]
        self.explanations[:] = [*kept, *filter(None, [text[:EXPLANATION_MAX_CHARACTERS]])][-EXPLANATIONS_MAX:]

    def note(self, name: str, value: str) -> None:
        """Write a note into this node's row, for ``elastic status``, in place of one of the same name; '' removes it.

        Raises:
            ValueError: There would be more than ``NOTES_MAX`` notes, or one of more than ``NOTE_MAX_CHARACTERS``.
        """
        if len({*self.notes, name}) > NOTES_MAX or len(name) + len(value) > NOTE_MAX_CHARACTERS:
            raise ValueError(f"at most {NOTES_MAX} notes of {NOTE_MAX_CHARACTERS} characters: {name}={value[:40]!r}")
        self.notes[name] = value
        if not value:
            del self.notes[name]


def _failed(message: str) -> Event:
    return Event("plugin_failed", message, Level.WARNING)


def _raised(why: str) -> Event:
    return _failed(f"a monitor raised, and is not called again in this round: {why}")


def _unread(monitor: object, why: str) -> Event:
    kind = type(monitor)
    message = f"{kind.__module__}.{kind.__qualname__} reads no more of this output: {why}"
    return Event("output_unread", message, Level.WARNING)


class Guarded(Generic[_Found]):
    """Calls a monitor, until that raises: the error is published, and from then on each call returns None."""

    def __init__(
        self, call: Callable[..., _Found], publish: Callable[[Event], None], failed: Callable[[str], Event] = _raised
    ) -> None:
        self._call: Callable[..., _Found] | None = call
        self._publish, self._failed = publish, failed

    def __call__(self, *given: object) -> _Found | None:
        """Return what the monitor returns; None once it has raised."""
        if (call := self._call) is None:
            return None
        try:
            return call(*given)
        except Exception as exc:
            if self._call is not None:  # else another thread has reported it
                self._call = None
                self._publish(self._failed(in_one_line(exc)))
            return None


class MonitorCallbacks:
    """The callbacks of all monitors of one round. For the agent."""

    def __init__(self, publish: Callable[[Event], None]) -> None:
        self._publish = publish
        self.finders: dict[str, Callable[[object], object]] = {}
        self.followers: list[tuple[str, Callable[[Any], object]]] = []
        self.last_words: list[tuple[Callable[[], object], float]] = []
        self.last_looks: list[Callable[[PlannedStop], Event | None]] = []
        self.servers: dict[str, Callable[[Mapping[str, Any], list[int]], str | None]] = {}
        self.snapshot_finders: list[Callable[[], tuple[int, int] | None]] = []
        self._passed: Future[None] | None = None  # done once followers have taken the newest report

    def obey(self, packet: Mapping[str, Any], descriptors: list[int]) -> bool:
        """Pass a packet to the monitor that serves its type; return False if none does.

        Raises:
            ValueError: It is malformed.
        """
        if (serve := self.servers.get(packet["type"])) is None:
            return False
        if why := serve(packet, descriptors):
            raise ValueError(why)
        return True

    def find_snapshot(self) -> tuple[int, int] | None:
        """Return the round and step of the newest snapshot in memory; None where no monitor knows one."""
        return self.snapshot_finders[0]() if self.snapshot_finders else None

    def find(self, name: str, value: str) -> str:
        """Return the answer to a question, whose value is JSON, as JSON; ``null`` where no monitor has one."""
        find = self.finders.get(name)
        try:
            return encode(None if find is None else find(decode(value)), ANSWER_MAX_BYTES)
        except ValueError as exc:
            self._publish(_failed(f"a monitor's answer to {name!r} is left out: {in_one_line(exc)}"))
            return encode(None, ANSWER_MAX_BYTES)

    def take(self, name: str, report: object) -> None:
        """Pass a report to its followers, in order, in a separate thread."""
        if takers := [take for followed, take in self.followers if followed == name]:
            pass_on = partial(self._pass_on, name, report, takers, self._passed)
            self._passed = asked(pass_on, name="elastic-reports")

    def say_last(self) -> str:
        """Return what monitors say of workers that are about to be stopped; blocks as long as they may take."""
        said = []
        for call, within in self.last_words:
            try:
                said.append(bounded(call, within))
            except TimeoutError:
                continue
        return "; ".join(text[:LAST_WORDS_MAX_CHARACTERS] for text in said if isinstance(text, str) and text)

    def _pass_on(
        self, name: str, report: object, takers: Sequence[Callable[[Any], object]], former: Future[None] | None
    ) -> None:
        if former is not None:
            wait([former])
        for take in takers:
            try:
                bounded(partial(take, report), FOLLOW_SECONDS)
            except TimeoutError:
                self._publish(_failed(f"a monitor has taken the report on {name!r} for {FOLLOW_SECONDS:g} s"))


class OutputReaders:
    """The monitors' readers of the output of one round. For the agent."""

    def __init__(self, publish: Callable[[Event], None] = lambda event: None) -> None:
        self.every_stream = self.apart = False  # whether a monitor has asked for it (:meth:`RunningRound.read_output`)
        self._publish = publish
        self.shapers: list[Callable[[int, Path | None], Shape | None]] = []
        self.openers: list[OpenReader] = []
        self._opened: list[_GuardedReader] = []

    def open(self, rank: int, stream: Stream = Stream.ALL, prefix: str = "") -> list[OutputReader]:
        """Return the readers of one stream of a worker."""
        opened = (open(rank, stream, prefix) for open in self.openers)
        made = [_GuardedReader(reader, self._publish) for reader in opened if reader is not None]
        self._opened += made
        return [*made]

    def shape(self, shape: Shape, rank: int, path: Path | None) -> Shape:
        """Return ``shape`` with those of the monitors around it, for a worker's stderr, which a file may keep."""
        for open in self.shapers:
            if (outer := open(rank, path)) is not None:
                shape = _GuardedShape(shape, outer, self._publish)
        return shape

    def catch_up(self) -> None:
        """Have all readers read what they have put off."""
        for reader in tuple(self._opened):
            reader.catch_up()


class _GuardedReader(OutputReader):
    """Passes output on to a reader, until that raises: the error is published, and output goes on."""

    def __init__(self, reader: OutputReader, publish: Callable[[Event], None]) -> None:
        self._call = Guarded(lambda method, *data: getattr(reader, method)(*data), publish, partial(_unread, reader))

    def feed(self, data: bytes) -> None:
        self._call("feed", data)

    def catch_up(self) -> None:
        self._call("catch_up")

    def finish(self) -> None:
        self._call("finish")


class _GuardedShape(Shape):
    """A shape inside a monitor's. If the monitor's raises, the error is published, and its held text is shown."""

    def __init__(self, inner: Shape, outer: Shape, publish: Callable[[Event], None]) -> None:
        self._inner, self._outer, self._publish = inner, outer, publish
        self._held, self._held_until = b"", math.inf  # of the outer one

    def feed(self, data: bytes) -> bytes:
        return self._shown("feed", self._inner.feed(data))

    def overdue(self) -> bytes:
        now = time.monotonic()
        shown = self._shown("feed", self._inner.overdue()) if self._inner.due <= now else b""
        return shown + (self._shown("overdue") if self._held_until <= now else b"")

    def finish(self) -> bytes:
        return self._shown("feed", self._inner.finish()) + self._shown("finish")

    def _shown(self, method: str, *data: bytes) -> bytes:
        new = b"".join(data)
        self._held = (self._held + new)[-HELD_MAX_BYTES:]
        try:
            shown = b"".join([getattr(self._outer, method)(*data)])  # join raises TypeError for any type but bytes
            least = time.monotonic() + OVERDUE_SECONDS if method == "overdue" else -math.inf
            self._held_until = max(float(self._outer.due), least)
        except Exception as exc:
            self._publish(_unread(self._outer, in_one_line(exc)))
            shown, self._outer, self._held_until = self._held, Shape(), math.inf
        if self._held_until == math.inf:
            self._held = b""
        else:  # of text that is shown in another form only the newest may be held
            self._held = self._held.removeprefix(shown) if self._held.startswith(shown) else new
        self.due = min(self._inner.due, self._held_until)
        return shown
