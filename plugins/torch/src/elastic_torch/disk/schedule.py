"""When a checkpoint is due: the same answer on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Literal

from elastic_core.errors import UsageError
from elastic_torch.disk.collective import Collective
from elastic_torch.disk.interval import WARM_UP, SaveNow, daly_interval, mean_time_between_failures, next_look


class Schedule:
    """Counts steps; clocks are only asked at steps that all ranks agree on, and then of all of them.

    Args:
        interval: As :class:`Disk` takes it.
        assumed: Seconds between failures, as long as there is nothing better.
        collective: All ranks.
        now: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        interval: int | timedelta | Literal["auto"] | None,
        assumed: float,
        collective: Collective,
        now: Callable[[], float],
    ) -> None:
        if isinstance(interval, bool) or not (
            interval is None
            or interval == "auto"
            or (isinstance(interval, int) and interval > 0)
            or (isinstance(interval, timedelta) and interval > timedelta())
        ):
            raise UsageError(
                f"interval is {interval!r}, but must be a number of steps, a timedelta, or 'auto'.",
                hint="interval=500 is every 500 steps, interval=timedelta(minutes=10) every 10 minutes.",
            )
        if not assumed > 0:
            raise UsageError(f"mean_time_between_failures is {assumed!r}, but must be more than 0 seconds.")
        self._interval = interval
        self._assumed = assumed
        self._collective = collective
        self._now = now
        self._first: tuple[int, float] | None = None
        self._look = 0
        self._saved_at = now()
        self._cost: float | None = None
        self._written: float | None = None
        self._failures = 0
        self._exposure = 0.0

    @property
    def saves(self) -> bool:
        """Whether anything is ever due."""
        return self._interval is not None

    def due(self, step: int) -> bool:
        """Whether to save after this step."""
        if self._interval is None:
            return False
        if isinstance(self._interval, int):
            return step % self._interval == 0
        if self._first is None:
            self._first = (step, self._now())
            self._look = step + 1
        if step < self._look:
            return False
        decision = self._decide(step)
        if isinstance(decision, SaveNow):
            self._look = step + 1
            return True
        self._look = step + decision
        return False

    def _decide(self, step: int) -> SaveNow | int:
        """Decide from the largest measurements of all ranks: the slowest one counts."""
        assert self._first is not None
        now = self._now()
        seconds = (now - self._first[1]) / max(1, step - self._first[0])
        unknown = float("inf")
        cost, written = (unknown if known is None else known for known in (self._cost, self._written))
        view = (now - self._saved_at, seconds, cost, written)
        elapsed, seconds, cost, written = (max(column) for column in zip(*self._collective.gather(view), strict=True))
        if isinstance(self._interval, timedelta):
            wanted = self._interval.total_seconds()
        elif cost == unknown:
            # Nothing is known before the first one; it shows as well that saving works at all.
            return SaveNow() if step - self._first[0] >= WARM_UP else WARM_UP
        elif written == unknown:
            return WARM_UP
        else:
            mtbf = mean_time_between_failures(self._assumed, self._failures, self._exposure + elapsed)
            wanted = max(daly_interval(cost, mtbf), written)
        look = next_look(elapsed, wanted, seconds)
        return look if isinstance(look, SaveNow) else look.steps

    def saved(self, cost: float) -> None:
        """Record that a checkpoint was begun, and kept training waiting for ``cost`` seconds."""
        self._exposure += self._now() - self._saved_at
        self._saved_at = self._now()
        self._cost = cost if self._cost is None else (self._cost + cost) / 2

    def written(self, seconds: float) -> None:
        """Record how long a checkpoint took until it was published. Called on the writer's thread."""
        self._written = seconds

    def failed(self, seconds: float) -> None:
        """Record after how long a checkpoint failed: the next one is due as usual. Called on the writer's thread."""
        self._written = max(self._written or 0.0, seconds)

    def learnt(self, failures: int, exposure: float) -> None:
        """Record what was seen before this process: failures, in so many seconds of training."""
        self._failures, self._exposure = failures, exposure
        self._saved_at = self._now()
