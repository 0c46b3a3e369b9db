"""Progress bars: which bar of a script is the training's, and the step that it stands for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from elastic_core.progress import LARGEST_STEP

BARS_MAX = 100  # of a worker; some have ever new titles
GROWTHS_TO_REPLACE = 3  # of a bar, before it takes the place of a full one
NOT_TRAINING = re.compile(
    r"map|filter|load|tokeniz|generat|fetch|resolv|shard|valid|eval|test|predict|sanity|saving|upload|cast|"
    r"creat|prepar|warm|extract|read|writ|convert|pack|group|cach|infer|sampl",
    re.IGNORECASE,
)
"""Titles of bars that are no training: preparation of data, evaluation, files."""
_PERCENT = re.compile(r":?\s*\d+%.*", re.DOTALL)
_EPOCH = re.compile(r"\bepoch\D{0,4}(\d+)", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Bar:
    """The state of a progress bar: ``n`` of ``total`` under a title whose digits are cut out."""

    title: str
    n: int
    total: int
    epoch: int | None = None
    begins: bool = False  # whether this is its first frame, which has no rate yet


@dataclass(slots=True)
class _Count:
    """What is known of one bar, which may begin again in each epoch."""

    n: int = -1
    before: int = 0  # steps of its earlier passes
    passes: int = 0
    growths: int = 0


class Bars:
    """Counts the steps of the bar that is the training's, over its passes; other bars only show that something moves.

    The first bar that is read is taken for the training's. Another one takes its place once it has grown three times
    and the first is full; a smaller one only if the first has never begun again, since that one is an evaluation.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], _Count] = {}
        self._current: tuple[str, int] | None = None

    def step(self, bar: Bar) -> int | None:
        """Return the step that a bar stands for; None if it is not the training's."""
        key = (bar.title, bar.total)
        if len(self._counts) > BARS_MAX and key not in self._counts:
            return None
        count = self._counts.setdefault(key, _Count())
        if bar.n < count.n:
            count.before, count.passes = count.before + count.n, count.passes + 1
        count.growths += bar.n > count.n
        count.n = bar.n
        if self._current is None or (key != self._current and self._replaces(key)):
            self._current = key
        if key != self._current:
            return None
        return bar.n + (count.before if bar.epoch is None else bar.epoch * bar.total)

    def _replaces(self, key: tuple[str, int]) -> bool:
        assert self._current is not None
        current, total = self._counts[self._current], self._current[1]
        if current.n < total or self._counts[key].growths < GROWTHS_TO_REPLACE:
            return False
        return key[1] >= total or not current.passes


def read_bar(match: re.Match[str]) -> Bar | None:
    """Return the bar of a match with the groups n and total; None where its title says that it is no training."""
    groups = match.groupdict()
    title = _PERCENT.sub("", match.string[: match.start("n")]).strip()[-80:]
    n, total = int(groups["n"][:16]), int(groups["total"][:16])
    if NOT_TRAINING.search(title) or not 0 < total < LARGEST_STEP or n > total:
        return None
    epoch = _EPOCH.search(title)
    return Bar(_DIGITS.sub("#", title), n, total, None if epoch is None else int(epoch[1][:9]), "<?," in match[0])
