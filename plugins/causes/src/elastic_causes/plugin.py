"""The plugin: finds why a worker failed, has Python workers record what ends them, and folds tracebacks of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_causes import evidence, failure_recorder
from elastic_causes.find import find_cause, is_ending, named_checkpoint, telling_lines
from elastic_causes.oom import find_counter
from elastic_causes.tracebacks import FoldedTracebacks
from elastic_core import hookimpl
from elastic_core.causes import DETAIL_MAX_CHARACTERS, EXCEPTION_EXIT_CODE, Cause, EndedWorker
from elastic_core.worker import read_error_file

if TYPE_CHECKING:
    from elastic_core.monitors import RunningRound


class CauseFinder:
    """The plugin, with the memory kills that the kernel had counted when the round began."""

    def __init__(self) -> None:
        self._counter = find_counter()
        self._kills = 0

    @hookimpl
    def elastic_round_starts(self, round: RunningRound) -> None:
        """Note the memory kills before this round, and fold its tracebacks."""
        self._kills = self._counter.read()
        round.shape_console(lambda rank, path: FoldedTracebacks(path))

    @hookimpl
    def elastic_worker_startup(self) -> Sequence[str]:
        """Have each Python worker record how it ends."""
        return (failure_recorder.__file__,)

    @hookimpl(trylast=True)
    def elastic_find_cause(self, worker: EndedWorker) -> Cause | None:
        """Look into its error file, at the end of its stderr, and for facts of this host."""
        recorded = read_error_file(Path(worker.error_file)) if worker.error_file else {}
        stderr = telling_lines(worker.stderr, DETAIL_MAX_CHARACTERS)
        if worker.exit_code is None and worker.records and not is_ending(recorded):
            return None
        code = EXCEPTION_EXIT_CODE if worker.exit_code is None else worker.exit_code
        found = find_cause(code, recorded, stderr, records=worker.records, over=worker.over)
        if worker.exit_code is None:
            return found if found.exception or worker.records else None
        found = evidence.with_wrong_address(found, worker)
        found = evidence.with_memory(found, worker, self._counter, self._kills)
        found = evidence.with_core_dump(found, worker)
        found = evidence.with_taken_port(found, worker, stderr)
        return replace(found, checkpoint=named_checkpoint(found.paths, worker.config.checkpoint_path))
