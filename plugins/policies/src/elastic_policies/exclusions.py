"""Policies that leave out what is broken: a host whose hardware fails again and again, a checkpoint that is torn.

A worker that is killed while it writes a checkpoint leaves a part of it, and most programs load the newest one. So each
further life fails while it loads that, before it makes a step. Such a checkpoint costs two restarts, not all of them.
The leader alone judges, so one node alone moves a checkpoint aside. It is renamed, never removed.
"""

from __future__ import annotations

import glob
import itertools
import os
import time
from dataclasses import dataclass
from itertools import takewhile
from typing import ClassVar

from elastic_core.incidents import MAX_EXCLUSION_SECONDS, Action, Failure, History, Incident, Verdict
from elastic_core.protocol import MAX_FAILURES, as_record, list_names
from elastic_policies.durations import format_duration, parse_count, parse_duration, split_value
from elastic_policies.known_failures import NOT_LOADED
from elastic_policies.past import within

FILES_MAX = 1000  # of a checkpoint, that are looked at
ASIDE = "torn-"  # before the name of a checkpoint that was moved aside, so that no program takes it for one
TYPES = frozenset(
    ("BadZipFile", "EOFError", "FileNotFoundError", "JSONDecodeError", "SafetensorError", "UnpicklingError", "error")
)
"""Exceptions of readers that meet a part of a file, or a folder without one; ``error`` is that of zlib and struct."""
OTHER_MODEL = "Error(s) in loading state_dict"  # of a whole checkpoint


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A host with so many failures within ``window`` seconds is left out for ``cool_down`` seconds."""

    NAME: ClassVar = "quarantine"
    FORM: ClassVar = "N/DURATION:DURATION, such as 3/1h:30m"
    failures: int
    window: float
    cool_down: float

    @classmethod
    def parse(cls, text: str) -> Quarantine:
        """Return the quarantine that ``3/1h:30m`` means; raise Wrong for another text."""
        count, durations = split_value(text, "/", cls.FORM)
        spans = (parse_duration(part, most=MAX_EXCLUSION_SECONDS) for part in split_value(durations, ":", cls.FORM))
        return cls(parse_count(count, least=1, most=MAX_FAILURES), *spans)

    def judge(self, incident: Incident, history: History) -> Verdict | None:
        """Leave out the host of the failure if it was the first cause so many times within the window.

        Only failures count that can be the host's fault. One that has come on another host too follows the job, and not
        the host, so no host is left out for it. A host that stays, because the others are too few, is not judged anew
        by every failure, but by every ``failures``-th: meanwhile other policies decide.
        """
        if not incident.explanation.hosts_fault:
            return None
        this, recent = as_record(incident), within(history, self.window)
        here = [one for one in recent if one.host == this.host]
        count = 1 + sum(one.signature == this.signature or one.hosts_fault for one in here)
        if count % self.failures:
            return None
        span = format_duration(self.window)
        given = f"quarantine={self.failures}/{span}:{format_duration(self.cool_down)}"
        if others := {one.host for one in recent if one.signature == this.signature} - {this.host}:
            reason = (
                f"{incident.host} is not left out: {list_names(sorted(others))} failed alike within {span} ({given})"
            )
            return Verdict(Action.RESTART, reason)
        reason = f"{incident.host} failed first {count} times within {span} ({given})"
        return Verdict(Action.EXCLUDE_HOST, reason, exclude_for=self.cool_down)


@dataclass(frozen=True, slots=True)
class TornCheckpoint:
    """The number of failures after which a checkpoint counts as torn, and the treatment of such a one."""

    NAME: ClassVar = "torn_checkpoint"
    FORM: ClassVar = "N, such as 2: the N-th failure in a row to load one checkpoint ends the job, or has it set aside"
    failures: int  # how many failures in a row
    place: str = ""  # ``--checkpoint_path``; '' where it is not known: then the failure is only told
    set_aside: bool = False  # ``--set_aside_torn_checkpoints``

    @classmethod
    def parse(cls, text: str) -> TornCheckpoint:
        """Return the policy for a number of failures; raise Wrong for another text."""
        return cls(parse_count(text, least=2, most=MAX_FAILURES))

    def judge(self, incident: Incident, history: History) -> Verdict | None:
        """Give up, or set the checkpoint aside, at the N-th life in a row that fails to load it.

        A life that fails to load makes no step, and leaves the checkpoint as it was. One that fails to save it does
        not.
        """
        newest, place = as_record(incident), _folder(self.place)
        if history.new_checkpoint or history.moved or not (newest.checkpoint and _is_of_reader(incident)):
            return None
        if self.place and os.path.commonpath([place, incident.checkpoint]) != place:
            return None
        lives = [newest, *takewhile(_is_barren, reversed(history.failures))]
        alike = [*takewhile(lambda life: life.checkpoint == newest.checkpoint, lives)]
        if not _is_barren(newest) or len(alike) < self.failures:
            return None
        what = f"{len(alike)} lives in a row failed to load {incident.checkpoint} (torn_checkpoint={self.failures})"
        unchanged = _seconds_unchanged(incident.checkpoint)
        if unchanged is None and newest.exception == FileNotFoundError.__name__:
            return None  # there is no checkpoint of this name
        if not self.place or unchanged is None:
            return Verdict(Action.RESTART, f"{what}: if it is torn, move it away")
        if unchanged < incident.after + (alike[1].after or 0.0) / 2:  # half: the disk's host may have another clock
            return None
        if not self.set_aside:
            hint = "move it away, or start the job with --set_aside_torn_checkpoints"
            return Verdict(Action.GIVE_UP, f"{what}: it may be torn; {hint}")
        if earlier := sorted({life.checkpoint for life in lives if life.checkpoint} - {newest.checkpoint}):
            why = f"{', '.join(earlier)} could not be loaded either, so the program may be wrong"
            return Verdict(Action.GIVE_UP, f"{what}; {why}")
        return _set_aside(incident.checkpoint, what)


def _folder(place: str) -> str:
    """Return the folder of a place that may end in a glob."""
    folder = os.path.abspath(place)
    while glob.has_magic(folder) and not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    return folder


def _is_of_reader(incident: Incident) -> bool:
    """Return True if the reader of a part of a checkpoint failed: no lack of memory, no other program."""
    if incident.exception.rpartition(".")[2] in TYPES:
        return True
    return incident.explanation.name == NOT_LOADED and OTHER_MODEL not in incident.message


def _is_barren(failure: Failure) -> bool:
    """Return True if a life has made no step and no checkpoint, as far as that is known."""
    return failure.step is None and not failure.new_checkpoint and not failure.moved


def _seconds_unchanged(path: str) -> float | None:
    """Return how long ago a checkpoint was changed; None where it is not there, as on another host's disk."""
    try:
        inside = [os.path.join(path, name) for name in os.listdir(path)] if os.path.isdir(path) else []
        return time.time() - max(os.lstat(each).st_mtime for each in [path, *inside[:FILES_MAX]])
    except OSError:
        return None


def _set_aside(path: str, what: str) -> Verdict:
    """Rename a checkpoint; the verdict says what became of it."""
    folder, name = os.path.split(path)
    names = itertools.chain([f"{ASIDE}{name}"], (f"{ASIDE}{name}-{number}" for number in itertools.count(2)))
    aside = next(each for each in (os.path.join(folder, each) for each in names) if not os.path.lexists(each))
    try:
        os.rename(path, aside)
    except OSError as exc:
        return Verdict(Action.GIVE_UP, f"{what}; it may be torn, and cannot be set aside: {exc}")
    return Verdict(Action.RESTART, f"{what}: it was set aside as {aside}")
