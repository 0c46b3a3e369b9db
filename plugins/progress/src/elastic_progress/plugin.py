"""The plugin: reads what the workers of each round print, and looks for their checkpoints, as the flags want it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core import hookimpl
from elastic_progress.checkpoint_files import CheckpointFiles
from elastic_progress.expressions import compile_expressions
from elastic_progress.flags import CHECKPOINT_PATTERN, NAN_STOP, PROGRESS_PATTERN
from elastic_progress.loss_watch import LossWatch
from elastic_progress.reader import ProgressReader
from elastic_progress.time_to_save import saved_event, time_to_save

if TYPE_CHECKING:
    from elastic_core.config import RunConfig
    from elastic_core.events import Event
    from elastic_core.monitors import PlannedStop, RunningRound
    from elastic_core.progress import Checkpoint


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
            round.look_last(self._look_for_files)
        round.look_last(self._judge_time_to_save)

    @hookimpl
    def elastic_run_ends(self) -> None:
        """Look for no more checkpoints."""
        if self._files is not None:
            self._files.close()

    def _look_for_files(self, stop: PlannedStop) -> None:
        if self._files is not None:
            self._files.look(settled=True)

    def _judge_time_to_save(self, stop: PlannedStop) -> Event | None:
        """Return the event about the state of the round, after all checkpoints of it were reported."""
        return None if self._round is None else saved_event(time_to_save(self._round.number, stop))

    def _report_checkpoint(self, checkpoint: Checkpoint, age: float) -> None:
        if self._round is not None:
            self._round.report_checkpoint(checkpoint, age)
