"""The newest progress of each local worker: from its own reports, and from monitors that read its output.

What follows from progress is posted to the agent's loop as an event.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


NOTHING = Progress()
ProgressEvent: TypeAlias = "StepSeen | Checkpointed"


@dataclass(slots=True)
class _Rank:
    """The progress of one worker. Instants are on the monotonic clock, in seconds."""

    progress: Progress = NOTHING
    counted: int | None = None  # the newest step that counts on over rounds
    at: float | None = None  # when something moved last
    stepped_at: float | None = None  # when its position last changed


class ProgressTable:
    """Knows the newest progress of the workers of the current round. Any thread may call its methods.

    Args:
        post: Gives the agent's loop an event.
        now: Seconds, monotonic.
    """

    def __init__(
        self,
        publish: Callable[[Event], None] = lambda event: None,
        post: Callable[[ProgressEvent], None] = lambda event: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publish, self._post, self._now = publish, post, now
        self._lock = threading.Lock()
        self._round = 0
        self._ranks: dict[int, _Rank] = {}
        self._step_seen = False
        self._reached: Reached | None = None  # how far the newest round came of which anything is known
        self._said: tuple[int, int | None, float] | None = None
        """The rank, step and instant of the last event ``progress``."""
        self._checkpoint: tuple[int | None, float] | None = None
        self._newest_checkpoint, self._made_at = -1, now()
        """The greatest step of all checkpoints that were noticed; no checkpoint from before this table is new."""
        self._has_new_checkpoint = False
        self._longest: float | None = None
        self.catch_up: Callable[[], None] = lambda: None
        """Has the monitors of the round read all output that has come."""
        self._follows = threading.local()
        """In a thread that calls followers, ``on`` is True: what they ask is answered without more reading."""
        self.followers: list[Callable[[int, Progress], None]] = []
        """Called after each progress of a rank, in the thread that it came in."""

    def begin(self, number: int) -> None:
        """Begin a round: nothing is known of its workers, and nothing follows them."""
        self.reached()
        with self._lock:
            self._round, self._step_seen, self._said = number, False, None
            self._has_new_checkpoint = False
            self._ranks.clear()
            self.followers, self.catch_up = [], lambda: None

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

    def observe(self, rank: int, progress: Progress, *, number: int | None = None, at: float | None = None) -> None:
        """Take progress of a worker of round ``number``, by default the current one, that it made at an instant."""
        with self._lock:
            if number is not None and number != self._round:
                return
            known = self._ranks.setdefault(rank, _Rank())
            posts = self._update(known, progress, self._now() if at is None else at)
            told = self._progress_event(rank, known)
            followers = tuple(self.followers)
        if told is not None:
            self._publish(told)
        for post in posts:
            self._post(post)
        self._follows.on = True
        try:
            for follow in followers:
                follow(rank, progress)
        finally:
            self._follows.on = False

    def _catch_up(self) -> None:
        if not getattr(self._follows, "on", False):  # a reader that reports holds its own lock
            self.catch_up()

    def notice_checkpoints(self, number: int) -> None:
        """Note that from now on every checkpoint of round ``number`` is noticed (rule L13)."""
        self._post(Checkpointed(number, self._now(), saved=False))

    def note_checkpoint(self, checkpoint: Checkpoint, age: float = 0.0, *, number: int | None = None) -> None:
        """Take a checkpoint that was saved ``age`` seconds ago, in round ``number``; None for the current one."""
        with self._lock:
            if number is not None and number != self._round:
                return
            post = self._note_checkpoint(checkpoint, age)
        self._post(post)

    def _update(self, known: _Rank, progress: Progress, now: float) -> list[ProgressEvent]:
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
        return posts

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

    def _progress_event(self, rank: int, known: _Rank) -> Event | None:
        now = self._now()
        if self._said is not None and now - self._said[2] < PROGRESS_EVENT_SECONDS:
            return None
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
        return Event("progress", message, Level.DEBUG, fields)
