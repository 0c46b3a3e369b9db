"""The plugin: reads what the workers of each round print, and looks for their checkpoints, as the flags want it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from elastic_core import hookimpl
from elastic_core.config import RunConfig
from elastic_core.monitors import RunningRound
from elastic_core.progress import Checkpoint, Progress
from elastic_progress.checkpoints import CheckpointFiles, saved_event, time_to_save
from elastic_progress.flags import CHECKPOINT_PATTERN, NAN_STOP, PROGRESS_PATTERN
from elastic_progress.patterns import compile_expressions
from elastic_progress.reader import ProgressReader


class ProgressMonitor:
    """The plugin: reads each round, fails a rank whose loss stays nan, and looks below ``--checkpoint_path``."""

    def __init__(self) -> None:
        self._reader = ProgressReader()
        self._nan_stop = 0
        self._place: str | None = None
        self._files: CheckpointFiles | None = None
        self._run = ""  # whose checkpoints these are
        self._notices_checkpoints = False
        self._round: RunningRound | None = None

    @hookimpl
    def elastic_configure(self, config: RunConfig) -> None:
        """Compile the expressions of the user; a wrong one ends the run before it begins."""
        progress, checkpoint = config.of(PROGRESS_PATTERN), config.of(CHECKPOINT_PATTERN)
        if progress is not None or checkpoint is not None:
            self._reader = ProgressReader(compile_expressions(progress, checkpoint))
        self._nan_stop, self._place = config.of(NAN_STOP), config.checkpoint_path
        self._notices_checkpoints = checkpoint is not None or self._place is not None

    @hookimpl
    def elastic_round_starts(self, round: RunningRound) -> None:
        """Read the output of the round's workers."""
        self._round = round
        self._reader.begin(round)
        if self._nan_stop:
            round.follow_progress(LossWatch(round, self._nan_stop).take)
        if self._notices_checkpoints:
            round.notice_checkpoints()
        if self._place is not None:
            if self._files is None or self._run != round.run_uid:  # what one run has noticed is news to the next
                self.elastic_run_ends()
                self._files, self._run = CheckpointFiles(self._place, self._report_checkpoint), round.run_uid
            files = self._files
            round.look_last(lambda stop: files.look(settled=True))
        round.look_last(lambda stop: saved_event(time_to_save(round.number, stop)))  # after all checkpoints of it

    @hookimpl
    def elastic_run_ends(self) -> None:
        """Look for no more checkpoints."""
        if self._files is not None:
            self._files.close()

    def _report_checkpoint(self, checkpoint: Checkpoint, age: float) -> None:
        if self._round is not None:
            self._round.report_checkpoint(checkpoint, age)


class LossWatch:
    """Fails a rank whose loss has been nan or infinite for ``most`` steps, or readings, in a row."""

    def __init__(self, round: RunningRound, most: int) -> None:
        self._round, self._most = round, most
        self._ranks: dict[int, _Losses] = {}

    def take(self, rank: int, progress: Progress) -> None:
        """Take the newest progress of a rank."""
        known = self._ranks.setdefault(rank, _Losses())
        known.progress = known.progress.updated(progress)
        if progress.loss is None or (progress.position is not None and progress.position == known.position):
            return
        known.position = progress.position
        if math.isfinite(progress.loss):
            known.broken = 0
            return
        known.broken += 1
        if known.broken == 1:
            known.since = _describe_position(known.progress)
        if known.broken == self._most:
            since = f"since {known.since}" if known.since else f"in {known.broken} readings in a row"
            self._round.fail(rank, f"the loss is {progress.loss} {since}", name="NanLoss")


@dataclass(slots=True)
class _Losses:
    progress: Progress = field(default_factory=Progress)
    position: float | None = None  # of the last loss
    broken: int = 0  # readings in a row whose loss is nan or infinite
    since: str = ""


def _describe_position(progress: Progress) -> str:
    for name, value in (("step", progress.step), ("sample", progress.samples), ("epoch", progress.epoch)):
        if value is not None:
            return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
    return ""
