"""Torn checkpoint: one that no life can load costs two restarts, not all of them.

A worker that is killed while it writes a checkpoint leaves a part of it, and most programs load the newest one. So each
further life fails while it loads that, before it makes a step.

The leader alone judges, so one node alone moves a checkpoint aside. It is renamed, never removed.
"""

from __future__ import annotations

import glob
import itertools
import os
import time
from dataclasses import dataclass
from itertools import takewhile

from elastic_core.incidents import Action, Failure, History, Incident, Verdict
from elastic_core.protocol import MAX_FAILURES, as_record
from elastic_policies.durations import parse_count
from elastic_policies.known_failures import NOT_LOADED

NAME = "torn_checkpoint"
FORM = "N, such as 2: the N-th failure in a row to load one checkpoint ends the job, or has it set aside"
FILES_MAX = 1000  # of a checkpoint, that are looked at
ASIDE = "torn-"  # before the name of a checkpoint that was moved aside, so that no program takes it for one
TYPES = frozenset(
    ("BadZipFile", "EOFError", "FileNotFoundError", "JSONDecodeError", "SafetensorError", "UnpicklingError", "error")
)
"""Exceptions of readers that meet a part of a file, or a folder without one; ``error`` is that of zlib and struct."""
OTHER_MODEL = "Error(s) in loading state_dict"  # of a whole checkpoint


@dataclass(frozen=True, slots=True)
class TornCheckpoint:
    """The number of failures after which a checkpoint counts as torn, and the treatment of such a one."""

    failures: int  # how many failures in a row
    place: str = ""  # ``--checkpoint_path``; '' where it is not known: then the failure is only told
    set_aside: bool = False  # ``--set_aside_torn_checkpoints``


def parse(text: str) -> TornCheckpoint:
    """Return what ``2`` means; raise Wrong for another text."""
    return TornCheckpoint(parse_count(text, least=2, most=MAX_FAILURES))


def judge(incident: Incident, history: History, given: TornCheckpoint) -> Verdict | None:
    """Give up, or set the checkpoint aside, at the N-th life in a row that fails to load it.

    A life that fails to load makes no step, and leaves the checkpoint as it was. One that fails to save it does not.
    """
    newest, place = as_record(incident), _folder(given.place)
    if history.new_checkpoint or history.moved or not (newest.checkpoint and _is_of_reader(incident)):
        return None
    if given.place and os.path.commonpath([place, incident.checkpoint]) != place:
        return None
    lives = [newest, *takewhile(_is_barren, reversed(history.failures))]
    alike = [*takewhile(lambda life: life.checkpoint == newest.checkpoint, lives)]
    if not _is_barren(newest) or len(alike) < given.failures:
        return None
    what = f"{len(alike)} lives in a row failed to load {incident.checkpoint} (torn_checkpoint={given.failures})"
    unchanged = _seconds_unchanged(incident.checkpoint)
    if unchanged is None and newest.exception == FileNotFoundError.__name__:
        return None  # there is no checkpoint of this name
    if not given.place or unchanged is None:
        return Verdict(Action.RESTART, f"{what}: if it is torn, move it away", policy=NAME)
    if unchanged < incident.after + (alike[1].after or 0.0) / 2:  # half: the disk's host may have another clock
        return None
    if not given.set_aside:
        hint = "move it away, or start the job with --set_aside_torn_checkpoints"
        return Verdict(Action.GIVE_UP, f"{what}: it may be torn; {hint}", policy=NAME)
    if earlier := sorted({life.checkpoint for life in lives if life.checkpoint} - {newest.checkpoint}):
        why = f"{', '.join(earlier)} could not be loaded either, so the program may be wrong"
        return Verdict(Action.GIVE_UP, f"{what}; {why}", policy=NAME)
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
        return Verdict(Action.GIVE_UP, f"{what}; it may be torn, and cannot be set aside: {exc}", policy=NAME)
    return Verdict(Action.RESTART, f"{what}: it was set aside as {aside}", policy=NAME)
