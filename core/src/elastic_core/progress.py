"""Progress of a training: how far a worker has come, and its checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LARGEST_STEP = 2**53  # steps and samples are smaller
PROGRESS_GROUPS = ("step", "loss", "samples", "epoch")  # the names of what a report and an expression may say
_STEP_OF_PATH = re.compile(r"(?:step|iter|checkpoint|ckpt)[a-z]*[-_=]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a worker; None for unknown values."""

    step: int | None = None  # the newest one, counted over all of the training where the script does so
    loss: float | None = None  # the newest one; may be nan or infinite
    samples: int | None = None  # that have been trained on
    epoch: float | None = None  # also a part of one, as 1.25
    counts_on: bool = field(default=True, repr=False, compare=False)
    """True if the step counts on over rounds. That of a bar without an epoch does not if the bar began at 0, nor does a
    step beside an epoch that is not read: each can be of one epoch."""

    @property
    def position(self) -> float | None:
        """The progress in the finest known unit; None where only a loss is known."""
        return next((value for value in (self.step, self.samples, self.epoch) if value is not None), None)

    def updated(self, newer: Progress) -> Progress:
        """Return this progress with what ``newer`` knows."""
        return Progress(**{**self._known(), **newer._known()})

    def describe(self) -> str:
        """Return the progress in a few words: ``step 120, loss 0.25``."""
        return ", ".join(
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self._known().items()
        )

    def _known(self) -> dict[str, Any]:
        return {name: value for name in PROGRESS_GROUPS if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was saved; ``step`` is None where its line or name does not say it."""

    step: int | None = None
    path: str = ""


def step_of_path(path: str) -> int | None:
    """Return the step that the name of a checkpoint says, as ``checkpoint-500`` or ``epoch=3-step=1200.ckpt``."""
    for part in reversed(path.split("/")):
        if found := _STEP_OF_PATH.findall(part):
            step = float(found[-1])
            return int(step) if step < LARGEST_STEP else None
    return None


def check_report(fields: Mapping[str, object]) -> Progress:
    """Return the progress that a script reports, by name and value.

    Raises:
        ValueError: A value is of another kind or out of range, or there is none.
    """
    values: dict[str, Any] = {name: fields[name] for name in PROGRESS_GROUPS if fields.get(name) is not None}
    if not values:
        raise ValueError(f"it reports none of {', '.join(PROGRESS_GROUPS)}")
    for name, value in values.items():
        whole = name in ("step", "samples")
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise ValueError(f"its {name} is no {'whole ' if whole else ''}number")
        if name != "loss" and not 0 <= value < LARGEST_STEP:
            raise ValueError(f"its {name} is out of range")
        if not whole:
            try:
                values[name] = float(value)
            except OverflowError:
                raise ValueError(f"its {name} is out of range") from None
    return Progress(**values)
