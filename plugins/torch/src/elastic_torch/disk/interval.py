"""How often a checkpoint is worth its cost. Pure functions; all times are in seconds.

A checkpoint that costs C, with failures every M on average, should be taken every sqrt(2 C M):
J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17(9), 1974.
Where C is not small against M, the higher-order estimate is better:
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22(3), 2006, equation (37).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PRIOR_FAILURES = 1.0
"""How many failures' worth of evidence the assumed mean time between failures counts as."""
WARM_UP = 10
"""Steps after which a first measurement is asked for."""
MOST_STEPS = 1_000_000


def young_interval(cost: float, mtbf: float) -> float:
    """Young's interval between checkpoints, in seconds.

    Args:
        cost: Seconds that one checkpoint costs.
        mtbf: Mean seconds between failures of the whole job.
    """
    _check(cost, mtbf)
    return math.sqrt(2 * cost * mtbf)


def daly_interval(cost: float, mtbf: float) -> float:
    """Daly's interval of computing between checkpoints, in seconds: his equation (37).

    Args:
        cost: Seconds that one checkpoint costs.
        mtbf: Mean seconds between failures of the whole job.

    Raises:
        ValueError: A cost below 0, or a mean time that is not above 0.
    """
    _check(cost, mtbf)
    if cost >= 2 * mtbf:
        return mtbf
    ratio = math.sqrt(cost / (2 * mtbf))
    return math.sqrt(2 * cost * mtbf) * (1 + ratio / 3 + ratio * ratio / 9) - cost


def mean_time_between_failures(assumed: float, failures: int, exposure: float) -> float:
    """Seconds between failures: what was assumed, outweighed by what is observed (a gamma prior worth one failure).

    Args:
        assumed: Seconds between failures that one would expect beforehand.
        failures: How many have been seen.
        exposure: Seconds of training in which they were seen.
    """
    return (PRIOR_FAILURES * assumed + exposure) / (PRIOR_FAILURES + failures)


@dataclass(frozen=True, slots=True)
class SaveNow:
    """A checkpoint is due at this step."""


@dataclass(frozen=True, slots=True)
class AskAgain:
    """No checkpoint is due before so many more steps have passed."""

    steps: int


def next_look(elapsed: float, wanted: float, step_seconds: float) -> SaveNow | AskAgain:
    """Whether a checkpoint is due, or after how many steps to look again.

    It looks again half-way, so that steps that become slower or faster on the way do not matter, and lets the last
    step that begins before its time be the one.

    Args:
        elapsed: Seconds since the last checkpoint.
        wanted: Seconds between checkpoints.
        step_seconds: Seconds that a step takes.
    """
    left = wanted - elapsed
    if left < step_seconds / 2 or left <= 0:
        return SaveNow()
    if step_seconds <= 0:
        return AskAgain(1)
    return AskAgain(min(MOST_STEPS, max(1, int(left / step_seconds / 2))))


def _check(cost: float, mtbf: float) -> None:
    if not (cost >= 0 and mtbf > 0):
        raise ValueError(
            f"A checkpoint's cost must be at least 0 and the mean time above 0, not {cost!r} and {mtbf!r}."
        )
