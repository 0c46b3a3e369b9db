"""The saved state of a training: the newest checkpoint below ``--checkpoint_path``, and what a planned stop has saved.

A thread looks for the files of checkpoints, since a slow disk may hold that up.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace

from elastic_core.events import Event, Level, describe_duration
from elastic_core.monitors import PlannedStop
from elastic_core.progress import Checkpoint, step_of_path
from elastic_core.threads import PatientThread

LOOK_SECONDS = 5.0  # between two looks
BUSY_MAX_SECONDS = 1.0  # for another look to end
FILES_MAX = 10_000  # that one look takes in
_NO_CHECKPOINT = re.compile(r"/events\.out\.tfevents[^/]*$|\.(?:log|tmp|lock|jsonl|csv)$")
"""Files that scripts write beside their checkpoints: logs, metrics, and temporary files."""


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file of a checkpoint, as one look finds it. ``changed_at``: seconds since the epoch."""

    changed_at: float
    path: str
    size: int


class NewestCheckpoint:
    """Decides which file is a finished checkpoint: the newest, once two looks have found it unchanged."""

    def __init__(self) -> None:
        self._last: SavedFile | None = None
        self._reported: SavedFile | None = None
        self._seen_at: float | None = None
        """The last look at which the newest file was another one; None if it was there from the first look on."""
        self._looked_at: float | None = None

    def look(
        self, files: Iterable[SavedFile], now: float, time_of_day: float, *, settled: bool = False
    ) -> tuple[Checkpoint, float] | None:
        """Take what a look has found; return a checkpoint that is finished and new, with its age in seconds.

        Once everything is ``settled``, because no worker runs, the newest file is finished.
        """
        newest = max(
            files, key=lambda file: (step_of_path(file.path) is not None, file.changed_at, file.path), default=None
        )
        before, self._last = self._last, newest
        if newest != before:
            self._seen_at = self._looked_at
        self._looked_at = now
        if newest is None or not (newest == before or settled) or newest == self._reported or not newest.size:
            return None
        self._reported = newest
        age = max(0.0, time_of_day - newest.changed_at)  # the clock of the disk's host may be another one
        if self._seen_at is not None:
            age = min(age, now - self._seen_at)
        return Checkpoint(step_of_path(newest.path), newest.path), age


def find_files(place: str) -> Iterator[SavedFile]:
    """Yield the files that a directory has at any depth, or a glob names; ``FILES_MAX`` at most.

    Of a directory that a glob names, its files.
    """
    places: Iterable[str] = [place]
    if glob.has_magic(place) and not os.path.lexists(place):
        places = glob.iglob(place, recursive=True)
    yield from itertools.islice((file for found in places for file in _files_below(found)), FILES_MAX)


def _files_below(place: str) -> Iterator[SavedFile]:
    paths: Iterable[str] = [place]
    if os.path.isdir(place):
        paths = (os.path.join(folder, name) for folder, _, names in os.walk(place) for name in names)
    for path in paths:
        if _NO_CHECKPOINT.search(path):
            continue
        with contextlib.suppress(OSError):  # it was removed just now
            found = os.stat(path)
            if stat.S_ISREG(found.st_mode):
                yield SavedFile(found.st_mtime, path, found.st_size)


class CheckpointFiles:
    """A thread that looks for the newest checkpoint at an interval, until it is closed.

    ``found`` takes a new checkpoint and its age in seconds; it is called from that thread.
    """

    def __init__(self, place: str, found: Callable[[Checkpoint, float], None], interval: float = LOOK_SECONDS) -> None:
        self._place, self._found, self._interval = place, found, interval
        self._closing = threading.Event()
        self._newest = NewestCheckpoint()
        self._lock = threading.Lock()
        PatientThread(target=self._run, name="elastic-checkpoints", daemon=True).start()

    def close(self) -> None:
        """Look no more. A look that is under way ends by itself."""
        self._closing.set()

    def look(self, *, settled: bool = False) -> None:
        """Look once, as long as the disk takes; ``settled`` as for :meth:`NewestCheckpoint.look`.

        It is left out if another look is still under way after ``BUSY_MAX_SECONDS``: a dead disk may hold it up.
        """
        if not self._lock.acquire(timeout=BUSY_MAX_SECONDS):
            return
        try:
            with contextlib.suppress(OSError):
                finished = self._newest.look(find_files(self._place), time.monotonic(), time.time(), settled=settled)
                if finished is not None and not self._closing.is_set():
                    self._found(*finished)
        finally:
            self._lock.release()

    def _run(self) -> None:
        while not self._closing.is_set():
            self.look()
            self._closing.wait(self._interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToSave:
    """The outcome of saving the state of a round, as far as this node knows it. None: not known."""

    round: int  # the round
    had_s: float  # seconds that its workers had from the notice on
    took_s: float  # seconds from the notice until the last of them had ended
    step: int | None = None  # the newest step that a worker of this node had reached
    saved_step: int | None = None  # the step of the newest checkpoint or snapshot
    saved_s: float | None = None  # seconds from that checkpoint to the end; None also for a snapshot in memory
    in_memory: bool = False  # whether that is a snapshot in memory
    in_time: bool | None = None  # whether it was saved after the notice, or is of the last step
    lost_steps: int | None = None  # the steps since then

    def describe(self) -> str:
        """Return it in one line."""
        of = "" if self.saved_step is None else f" of step {self.saved_step}"
        age = describe_duration(self.saved_s or 0.0)
        if self.in_time is None:
            saved = "no checkpoint of them is known"
        elif self.in_memory:
            saved = f"the newest snapshot in memory is{of}"
        elif self.in_time:
            saved = f"a checkpoint{of} was saved {age} before the end"
        else:
            saved = f"they saved none then, and the newest{of} was {age} old at the end"
        lost = ""
        if self.in_memory and self.lost_steps == 0:
            lost = "; no step is lost while a node of the job runs"
        elif self.lost_steps is not None:
            lost = f"; {self.lost_steps} step(s) are lost" if self.lost_steps else "; no step is lost"
        took, had = describe_duration(self.took_s), describe_duration(self.had_s)
        return f"the workers of round {self.round} had {had} to save, and ended after {took}: {saved}{lost}"


def time_to_save(number: int, stop: PlannedStop) -> TimeToSave:
    """Return what became of the state of round ``number`` after a planned stop; the newest saved state counts."""
    saved, age = stop.checkpoint if stop.checkpoint is not None else (None, None)
    snapshot = stop.snapshot_step
    in_memory = snapshot is not None and (age is None or (saved is not None and snapshot > saved))
    if in_memory:
        saved, age = snapshot, None
    found = TimeToSave(round=number, had_s=round(stop.had_s, 3), took_s=round(stop.took_s, 3), step=stop.step)
    if saved is None and age is None:
        return found
    lost = None if stop.step is None or saved is None else max(0, stop.step - saved)
    return replace(
        found,
        saved_step=saved,
        saved_s=None if age is None else round(age, 3),
        in_memory=in_memory,
        in_time=lost == 0 or (age is not None and age <= stop.took_s),
        lost_steps=lost,
    )


def saved_event(found: TimeToSave) -> Event:
    """Return the event, which people see where anything is known."""
    level = Level.DEBUG if found.in_time is None else Level.INFO if found.in_time else Level.WARNING
    return Event("time_to_save", found.describe(), level, asdict(found))
