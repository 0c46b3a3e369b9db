"""Fails a rank whose loss stays nan or infinite (``--nan_stop``)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from elastic_core.monitors import RunningRound
from elastic_core.progress import Progress


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
