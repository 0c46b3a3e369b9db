"""The newest progress of each local worker: from its own reports, and from monitors that read its output.

What follows from progress is posted to the agent's loop as an event.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from elastic_core.events import Event, Field, Level
from elastic_core.progress import Checkpoint, Progress
from elastic_core.protocol.node_events import Checkpointed
from elastic_core.protocol.roster import Reached

PROGRESS_EVENT_SECONDS = 10.0  # between two events ``progress`` of a node, at least


@dataclass(frozen=True, slots=True)
class StepSeen:
    """A worker of the round has come to another step."""

    round: int


ProgressEvent: TypeAlias = "StepSeen | Checkpointed"


@dataclass(slots=True)
class _Rank:
    """The progress of one worker. Instants are on the monotonic clock, in seconds."""

    progress: Progress = field(default_factory=Progress)
    counted: int | None = None  # the newest step that counts on over rounds
    at: float | None = None  # when something moved last
    stepped_at: float | None = None  # when its position last changed


@dataclass(slots=True)
class _Round:
    """The progress of a round."""

    number: int = 0
    ranks: dict[int, _Rank] = field(default_factory=dict)
    step_seen: bool = False
    has_new_checkpoint: bool = False
    told: tuple[int, int | None, float] | None = None  # the rank, step and instant of the last event ``progress``

    @property
    def newest_step(self) -> int | None:
        """The newest step of any worker."""
        steps = (known.progress.step for known in self.ranks.values())
        return max((step for step in steps if step is not None), default=None)


class ProgressTable:
    """Knows the newest progress of the workers of the current round. Any thread may call its methods."""

    def __init__(
        self,
        publish: Callable[[Event], None] = lambda event: None,
        post: Callable[[ProgressEvent], None] = lambda event: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publish, self._post, self._now = publish, post, now
        self._lock = threading.Lock()
        self._round = _Round()
        self._reached: Reached | None = None  # how far the newest round came of which anything is known
        self._checkpoint: tuple[int | None, float] | None = None
        self._newest_checkpoint, self._made_at = -1, now()
        """The greatest step of all checkpoints that were noticed; no checkpoint from before this table is new."""
        self.longest_step: float | None = None
        """The longest time in seconds between two steps of a worker in a row, in this run, without known pauses."""
        self.catch_up: Callable[[], None] = lambda: None  # has the monitors of the round read all output that has come
        self._follows = threading.local()
        """In a thread that calls followers, ``on`` is True: what they ask is answered without more reading."""
        self.followers: list[Callable[[int, Progress], None]] = []
        """Called after each progress of a rank, in the thread that it came in."""

    def begin(self, number: int) -> None:
        """Begin a round: nothing is known of its workers, and nothing follows them."""
        self.reached()
        with self._lock:
            self._round = _Round(number)
            self.followers, self.catch_up = [], lambda: None

    def newest(self) -> Mapping[int, tuple[Progress, float]]:
        """Return the newest progress of each rank that has made any, and how many seconds ago it last moved."""
        self._catch_up()
        with self._lock:
            now, ranks = self._now(), self._round.ranks.items()
            return {rank: (known.progress, now - known.at) for rank, known in ranks if known.at is not None}

    def step(self, rank: int) -> tuple[int | None, bool]:
        """Return the newest step of a worker, and whether it counts on over rounds; of one without, the others'."""
        self._catch_up()
        with self._lock:
            every = {rank: known for rank, known in self._round.ranks.items() if known.progress.step is not None}
            found = {rank: every[rank]} if rank in every else every
            counts_on = all(known.counted == known.progress.step for known in found.values())
            return _Round(ranks=found).newest_step, counts_on

    def reached(self) -> Reached | None:
        """Return how far the round has come here; while nothing is known of it, how far the one before had come."""
        self._catch_up()
        with self._lock:
            now = self._round
            step = max((known.counted for known in now.ranks.values() if known.counted is not None), default=None)
            if step is not None or now.step_seen or now.has_new_checkpoint:
                self._reached = Reached(now.number, step, now.step_seen, now.has_new_checkpoint)
            return self._reached

    def last_checkpoint(self) -> tuple[int | None, float] | None:
        """Return the step of the last checkpoint, as far as it is known, and its age in seconds; None if none is known.

        It may be one of an earlier round.
        """
        with self._lock:
            return None if self._checkpoint is None else (self._checkpoint[0], self._now() - self._checkpoint[1])

    def observe(self, rank: int, progress: Progress, *, number: int | None = None, at: float | None = None) -> None:
        """Take progress of a worker of round ``number``, by default the current one, that it made at an instant."""
        with self._lock:
            current = self._round
            if number not in (None, current.number):
                return
            known = current.ranks.setdefault(rank, _Rank())
            moved = self._update(known, progress, self._now() if at is None else at)
            is_first, current.step_seen = moved and not current.step_seen, current.step_seen or moved
            told = self._progress_event(rank, known)
            followers = tuple(self.followers)
        if told is not None:
            self._publish(told)
        if is_first:
            self._post(StepSeen(current.number))
        self._follows.on = True
        try:
            for follow in followers:
                follow(rank, progress)
        finally:
            self._follows.on = False

    def _catch_up(self) -> None:
        if not getattr(self._follows, "on", False):  # a reader that reports holds its own lock
            self.catch_up()

    def skip_pause(self, longest_step: float | None, *, number: int) -> None:
        """Put back the longest step from before a pause of this process in round ``number``; time all from now on."""
        with self._lock:
            if number == self._round.number:
                self.longest_step, now = longest_step, self._now()
                for known in self._round.ranks.values():
                    known.stepped_at = None if known.stepped_at is None else now

    def notice_checkpoints(self, number: int) -> None:
        """Note that from now on every checkpoint of round ``number`` is noticed (rule L13)."""
        self._post(Checkpointed(number, self._now(), saved=False))

    def note_checkpoint(self, checkpoint: Checkpoint, age: float = 0.0, *, number: int | None = None) -> None:
        """Take a checkpoint that was saved ``age`` seconds ago, in round ``number``; None for the current one."""
        with self._lock:
            if number not in (None, self._round.number):
                return
            reached = self._round.newest_step
            step = reached if checkpoint.step is None and not age else checkpoint.step
            # A file without a step in its name is of a step that was reached already, if steps are known at all.
            position = reached if step is None else step
            at = self._now() - age
            newer = at >= self._made_at and (position is None or position > self._newest_checkpoint)
            self._newest_checkpoint = max(self._newest_checkpoint, -1 if position is None else position)
            self._round.has_new_checkpoint |= newer
            self._checkpoint = (step, at)
            noted = Checkpointed(self._round.number, at, newer=newer)
        self._post(noted)

    def _update(self, known: _Rank, progress: Progress, now: float) -> bool:
        """Take progress of a rank; return True if its position has changed, and not for the first time."""
        before = known.progress
        known.progress = before.updated(progress)
        if progress.step is not None and progress.counts_on:
            known.counted = progress.step
        if progress.position is None:
            known.at = now
        if known.progress.position == before.position:
            return False
        stepped_at, known.at, known.stepped_at = known.stepped_at, now, now
        if stepped_at is None:
            return False
        self.longest_step = max(now - stepped_at, self.longest_step or 0.0)
        return True

    def _progress_event(self, rank: int, known: _Rank) -> Event | None:
        now, step, rate = self._now(), known.progress.step, None
        if (last := self._round.told) is not None:
            if now - last[2] < PROGRESS_EVENT_SECONDS:
                return None
            if last[0] == rank and step is not None and last[1] is not None:
                rate = round((step - last[1]) / (now - last[2]), 6)
        self._round.told = (rank, step, now)
        fields: dict[str, Field] = {
            "rank": rank,
            "step": step,
            "loss": known.progress.loss,
            "samples": known.progress.samples,
            "epoch": known.progress.epoch,
            "steps_per_s": rate,
        }
        message = f"rank {rank}: {known.progress.describe() or 'moves'}"
        return Event("progress", message, Level.DEBUG, fields)
