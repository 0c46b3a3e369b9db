"""Progress bars: which bar of a script is the training's, and the step that it stands for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from elastic_core.progress import LARGEST_STEP

BARS_MAX = 100  # of a worker; some have ever new titles
GROWTHS_TO_REPLACE = 3  # of a bar while another one stands still, before it takes its place
CURSOR_UP = "\x1b[A"  # follows a frame of tqdm's below another bar that is not closed, to which it returns
NOT_TRAINING = re.compile(
    r"map|filter|load|tokeniz|generat|fetch|resolv|shard|valid|eval|test|predict|sanity|saving|upload|cast|"
    r"creat|prepar|warm|extract|read|writ|convert|pack|group|cach|infer|sampl|download|captur|\bval\b",
    re.IGNORECASE,
)
"""Titles of bars that are no training: preparation of data, evaluation, files."""
_PERCENT = re.compile(r":?\s*\d+%.*", re.DOTALL)
_EPOCH = re.compile(r"\bepoch\D{0,4}(\d+)", re.IGNORECASE)
_NUMBERS = re.compile(r"[\s━─╸╺]*(?:-?\d[\d.,]*(?:e[+-]?\d+)?|\b(?:nan|inf)\b)[\s━─╸╺]*")
_SCALES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@dataclass(frozen=True, slots=True)
class Bar:
    """The state of a progress bar: ``n`` of ``total`` (0 for unknown) under a title whose numbers are cut out."""

    title: str
    n: int
    total: int
    epoch: int | None = None
    begins: bool = False  # whether this is its first frame, which has no rate yet
    is_inner: bool = False  # whether it stands below another bar that is not closed

    @property
    def counts_on(self) -> bool:
        """True if its title has an epoch, from which its step can be counted."""
        return self.epoch is not None and self.total > 0


@dataclass(slots=True)
class _Count:
    """The passes of one bar, which may begin again in each epoch."""

    n: int = -1
    before: int = 0  # steps of its earlier passes
    passes: int = 0


class Bars:
    """Counts the steps of the bar that is the training's, over its passes; other bars only show that something moves.

    The first bar that is read is taken for the training's. Another one takes its place once it has grown three times
    while the first stood still, unless that one is not closed yet; a smaller one only if the first has never begun
    again, since that one is an evaluation.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], _Count] = {}
        self._current: tuple[str, int] | None = None
        self._rivals: dict[tuple[str, int], int] = {}  # how often others have grown since the current one did

    def step(self, bar: Bar) -> int | None:
        """Return the step that a bar stands for; None if it is not the training's."""
        key = (bar.title, bar.total)
        if len(self._counts) > BARS_MAX and key not in self._counts:
            return None
        count = self._counts.setdefault(key, _Count())
        if bar.n < count.n:
            count.before, count.passes = count.before + count.n, count.passes + 1
        grown = bar.n > count.n
        count.n = bar.n
        if key != self._current:
            self._rivals[key] = self._rivals.get(key, 0) + grown
            if self._current is not None and not self._replaces(self._current, bar):
                return None
            self._current = key
        self._rivals.clear()
        return bar.n + (bar.epoch * bar.total if bar.counts_on and bar.epoch is not None else count.before)

    def _replaces(self, current: tuple[str, int], bar: Bar) -> bool:
        if bar.is_inner or self._rivals[bar.title, bar.total] < GROWTHS_TO_REPLACE:
            return False
        return bar.total >= current[1] or not self._counts[current].passes


def read_bar(match: re.Match[str]) -> Bar | None:
    """Return the bar of a match with the groups n and total; None where its title says that it is no training."""
    groups = match.groupdict()
    title = _PERCENT.sub("", match.string[: match.start("n")]).strip()[-80:]
    n, total = _count(groups["n"]), _count(groups["total"])
    if NOT_TRAINING.search(title) or n is None or (total is not None and not n <= total < LARGEST_STEP) or total == 0:
        return None
    epoch = _EPOCH.search(title)
    return Bar(
        _NUMBERS.sub("#", title),
        n,
        total or 0,
        None if epoch is None else int(epoch[1][:9]),
        begins="<?," in match[0],
        is_inner=match.string.endswith(CURSOR_UP),
    )


def _count(text: str | None) -> int | None:
    """Return a count such as ``12`` or ``1.20k``; None where a bar does not know it."""
    try:
        return None if text is None else round(float(text[:16].rstrip("kMGT")) * _SCALES.get(text[-1], 1))
    except ValueError:
        return None
