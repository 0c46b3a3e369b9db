"""When a checkpoint is due: as often as it is worth its cost, and the same answer on all ranks.

A checkpoint that costs C, with failures every M on average, should be taken every sqrt(2 C M):
J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17(9), 1974.
Where C is not small against M, the higher-order estimate is better:
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22(3), 2006, equation (37). All times are in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Literal

from elastic_core.errors import UsageError
from elastic_torch.disk.collective import Collective

PRIOR_FAILURES = 1.0  # the weight of the assumed mean time between failures, as a number of observed failures
WARM_UP = 10  # steps after which a first measurement is asked for
MOST_STEPS = 1_000_000


class Schedule:
    """Counts steps; clocks are only asked at steps that all ranks agree on, and then of all of them."""

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
        """True if anything is ever due."""
        return self._interval is not None

    def due(self, step: int) -> bool:
        """Return True if a checkpoint is due after this step."""
        if self._interval is None:
            return False
        if isinstance(self._interval, int):
            return step % self._interval == 0
        if self._first is None:
            self._first = (step, self._now())
            self._look = step + 1
        if step < self._look:
            return False
        wait = self._steps_to_wait(step)
        self._look = step + max(1, wait)
        return wait == 0

    def _steps_to_wait(self, step: int) -> int:
        """Return :func:`next_look` of the largest measurements of all ranks: the slowest one counts."""
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
            return 0 if step - self._first[0] >= WARM_UP else WARM_UP
        elif written == unknown:
            return WARM_UP
        else:
            mtbf = mean_time_between_failures(self._assumed, self._failures, self._exposure + elapsed)
            wanted = max(daly_interval(cost, mtbf), written)
        return next_look(elapsed, wanted, seconds)

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


def daly_interval(cost: float, mtbf: float) -> float:
    """Return Daly's interval of computing between checkpoints, in seconds: his equation (37).

    ``mtbf`` is the mean time between failures of the whole job, in seconds, as ``cost`` is.

    Raises:
        ValueError: A cost below 0, or a mean time that is not above 0.
    """
    if not (cost >= 0 and mtbf > 0):
        raise ValueError(
            f"A checkpoint's cost must be at least 0 and the mean time above 0, not {cost!r} and {mtbf!r}."
        )
    if cost >= 2 * mtbf:
        return mtbf
    ratio = math.sqrt(cost / (2 * mtbf))
    return math.sqrt(2 * cost * mtbf) * (1 + ratio / 3 + ratio * ratio / 9) - cost


def mean_time_between_failures(assumed: float, failures: int, exposure: float) -> float:
    """Return seconds between failures: as assumed, outweighed by observations (a gamma prior worth one failure).

    ``failures`` were seen in ``exposure`` seconds of training.
    """
    return (PRIOR_FAILURES * assumed + exposure) / (PRIOR_FAILURES + failures)


def next_look(elapsed: float, wanted: float, step_seconds: float) -> int:
    """Return after how many steps to ask again whether a checkpoint is due; 0 where it is.

    It looks again half-way, so that steps that become slower or faster on the way do not matter, and lets the last
    step that begins before its time be the one.
    """
    left = wanted - elapsed
    if left < step_seconds / 2 or left <= 0:
        return 0
    if step_seconds <= 0:
        return 1
    return min(MOST_STEPS, max(1, int(left / step_seconds / 2)))
