"""The part of a node's row about its workers, for ``elastic status``: pids, steps and saved states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastic_core.agent.worker import Worker
from elastic_core.progress import Progress
from elastic_core.protocol.roster import LocalWorkers, SavedStep


@dataclass(frozen=True, slots=True)
class DescribeWorkers:
    """It is time to say how far the workers of a round are."""

    round: int


@dataclass(slots=True)
class WorkerRows:
    """Makes the part of the row. Instants are the agent's monotonic clock, in seconds."""

    _told: object = None  # what was told last, with instants in place of ages
    _snapshot: tuple[tuple[int, int], float] | None = None  # the newest, and when it was noticed

    def look(
        self,
        workers: Sequence[Worker],
        progress: Mapping[int, tuple[Progress, float]],
        checkpoint: tuple[int | None, float] | None,
        snapshot: tuple[int, int] | None,
        notes: Mapping[str, str],
        *,
        now: float,
        heartbeat: int,
        store: float,
    ) -> LocalWorkers | None:
        """Return what there is to say; None if that is what was said last.

        Args:
            progress: How far each rank has come, and how many seconds ago it last moved.
            checkpoint: The step of the last one, as far as it is known, and its age in seconds.
            snapshot: The round and step of the newest that workers keep in memory.
            notes: What monitors have noted, by name.
            store: The seconds that the store took to answer it.
        """
        known = [progress.get(worker.assignment.rank, (Progress(), None)) for worker in workers]
        if snapshot is None or self._snapshot is None or self._snapshot[0] != snapshot:
            self._snapshot = None if snapshot is None else (snapshot, now)
        found = LocalWorkers(
            heartbeat=heartbeat,
            pids=tuple(worker.pid for worker in workers),
            steps=tuple(reached.step for reached, _ in known),
            seconds=tuple(None if ago is None else round(ago, 1) for _, ago in known),
            snapshot=None
            if self._snapshot is None
            else SavedStep(self._snapshot[0][1], round(now - self._snapshot[1], 1)),
            checkpoint=None if checkpoint is None else SavedStep(checkpoint[0], round(checkpoint[1], 1)),
            store=round(store, 4),
            notes={**notes},
        )
        moved = [None if ago is None else round(now - ago) for _, ago in known]
        saved = None if checkpoint is None else round(now - checkpoint[1])
        told = (found.pids, found.steps, moved, self._snapshot, saved, found.notes)
        if told == self._told:
            return None
        self._told = told
        return found
