"""Reads steps, losses and checkpoints from lines that a script prints.

:class:`Scanner` cuts a stream into the lines that are worth a look, :class:`Recognizer` finds the pattern that a job
prints, :class:`Bars` tells which progress bar is the training's, and :class:`LineReader` reads the lines of one worker.
All is pure. ``reader`` drives them.

A regular expression cannot be interrupted, so lines are cut to their ends, and the lines of a second are counted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from elastic_core.progress import LARGEST_STEP, Checkpoint, Progress, step_of_path
from elastic_progress.patterns import (
    BUILT_IN,
    CHECKPOINT_EXPRESSIONS,
    CHECKPOINT_NEEDLE,
    PATTERNS,
    USER_LINE_MAX_CHARACTERS,
    Expressions,
    Pattern,
    needle_of,
)

LINE_MAX_BYTES = 2000  # of a line, its end; built-in expressions take linear time
LINES_PER_SECOND = 25.0  # of one stream that are matched
LINES_AT_ONCE = 25.0
RESERVE = 5.0  # of these, lines only for lines with the last needle, that of checkpoints, which are rare
MATCHES_TO_CHOOSE = 3  # with growing steps, until a pattern is chosen
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
STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


# Streams --------------------------------------------------------------------------------------------------------------


class Scanner:
    """Cuts one stream into lines, and returns those that are worth matching: the newest, and a limited number a second.

    A carriage return ends a line too. What follows one and has no end yet is returned as well where it ends with a
    bracket, as the newest state of a progress bar does.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._follows_return = False
        self._allowed, self._at = LINES_AT_ONCE + RESERVE, 0.0
        self._waiting: tuple[bytes, float] | None = None  # the newest line that there was no time for, and when it came
        self._shown = b""  # the bar without an end that was returned already

    def feed(self, data: bytes, needles: Sequence[bytes] | None, now: float) -> list[str]:
        """Return lines that ``data`` completes, oldest first.

        A line must have one of ``needles``, unless these are None; lines with the last one come first.
        """
        data = self._rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        whole, rest = data[:end], data[end:]
        if end:
            self._follows_return = whole.endswith(b"\r")
        self._rest = rest[-LINE_MAX_BYTES:]
        if not _has_any(whole, needles) and not (self._follows_return and _has_any(rest, needles)):
            return []
        rare = needles[-1] if needles and needles[-1] in whole else None
        return self._pick(self._candidates(whole, needles, rare), rare, now)

    def take_waiting(self) -> tuple[list[str], float]:
        """Return the newest line for which there was no time, if none came after it, and when it came."""
        waiting, self._waiting = self._waiting, None
        return ([], 0.0) if waiting is None else ([_text(waiting[0])], waiting[1])

    def finish(self, needles: Collection[bytes] | None) -> list[str]:
        """Return the last line of the stream, if it has no end."""
        last, self._rest = self._rest.strip(), b""
        return [_text(last)] if last and last != self._shown and _has_any(last, needles) else []

    def _candidates(self, whole: bytes, needles: Sequence[bytes] | None, rare: bytes | None) -> list[bytes]:
        """Return lines, newest first, as many as may be matched at all."""
        found: list[bytes] = []
        rest = self._rest.strip()
        if self._follows_return and rest.endswith(b"]") and _has_any(rest, needles):
            found.append(rest)
        shown, self._shown = self._shown, rest if found else b""
        lines = whole[-(1 << 16) :].splitlines()
        if lines and lines[0].strip() == shown:
            lines[0] = b""
        for line in reversed(lines):
            line = line.strip()
            if line and _has_any(line, needles):
                found.append(line[-LINE_MAX_BYTES:])
                if len(found) > LINES_AT_ONCE:
                    if rare is None:
                        break
                    needles = (rare,)
        return found

    def _pick(self, newest_first: list[bytes], rare: bytes | None, now: float) -> list[str]:
        self._allowed = min(LINES_AT_ONCE + RESERVE, self._allowed + (now - self._at) * LINES_PER_SECOND)
        self._at = now
        picked = [] if rare else newest_first[: max(0, int(self._allowed - RESERVE))]
        self._allowed -= len(picked)
        for line in newest_first if rare else ():
            if self._allowed >= (1 if rare is not None and rare in line else 1 + RESERVE):
                self._allowed -= 1
                picked.append(line)
        if newest_first:
            self._waiting = None if picked else (newest_first[0], now)
        return [_text(line) for line in reversed(picked)]


def _has_any(data: bytes, needles: Collection[bytes] | None) -> bool:
    if needles is None:
        return bool(data)
    for needle in needles:  # noqa: SIM110  # a generator takes twice as long, and this is done for each line
        if needle in data:
            return True
    return False


def _text(line: bytes) -> str:
    text = line[-LINE_MAX_BYTES:].decode(errors="replace")
    return STYLE.sub("", text) + CURSOR_UP * text.endswith(CURSOR_UP) if "\x1b" in text else text


# Values ---------------------------------------------------------------------------------------------------------------


def progress_of(groups: Mapping[str, str | None]) -> Progress:
    """Return the progress that the named groups of a match stand for; a group that is no number is left out."""
    return Progress(
        step=_whole(groups.get("step")),
        loss=_number(groups.get("loss")),
        samples=_whole(groups.get("samples")),
        epoch=_position(groups.get("epoch")),
    )


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text.strip().strip("'\"").replace(",", "").rstrip(".:;)]}"))
    except ValueError:
        return None


def _position(text: str | None) -> float | None:
    value = _number(text)
    return value if value is not None and 0 <= value < LARGEST_STEP else None


def _whole(text: str | None) -> int | None:
    value = _position(text)
    return None if value is None or not value.is_integer() else int(value)


# Bars -----------------------------------------------------------------------------------------------------------------


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


# Patterns -------------------------------------------------------------------------------------------------------------


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


def _find(expression: str, needles: Sequence[str], line: str) -> re.Match[str] | None:
    return _compiled(expression).search(line) if any(needle in line for needle in needles) else None


class Recognizer:
    """Finds the pattern that the workers of a node print; they run one program, so one choice holds for all of them."""

    def __init__(self, expressions: Expressions = BUILT_IN) -> None:
        self.expressions = expressions
        self.chosen: Pattern | None = None
        self.needles: tuple[bytes, ...] | None = ()
        """Texts of which a line must have one to be worth reading, the last that of checkpoints; None for any line."""
        self._set_needles()

    def choose(self, pattern: Pattern) -> None:
        """Read lines of this pattern from now on."""
        self.chosen = pattern
        self._set_needles()

    @property
    def candidates(self) -> Iterable[Pattern]:
        """The patterns that may be chosen now: all, or after a generic one the others."""
        if self.expressions.progress is not None:
            return ()
        if self.chosen is None:
            return PATTERNS
        return [pattern for pattern in PATTERNS if not pattern.is_generic] if self.chosen.is_generic else ()

    def _set_needles(self) -> None:
        texts: list[str] = []
        if self.expressions.progress is not None:
            texts.append(needle_of(self.expressions.progress.pattern))
        else:
            if self.chosen is not None:  # most lines of a stream that have any needle have this one
                texts += [*self.chosen.needles, *(needle for _, needles in self.chosen.also for needle in needles)]
            texts += [needle for pattern in self.candidates for needle in pattern.needles]
        if self.expressions.checkpoint is not None:
            texts.append(needle_of(self.expressions.checkpoint.pattern))
        else:
            texts.append(CHECKPOINT_NEEDLE)
        # A text within which is another one finds no line that the other does not find.
        *others, last = (text.encode() for text in texts)
        found = [text for text in dict.fromkeys(others) if not any(one != text and one in text for one in others)]
        self.needles = (*(text for text in found if text != last), last) if all(texts) else None


@dataclass(slots=True)
class LineReader:
    """Reads the lines of one worker, of both its streams."""

    recognizer: Recognizer
    _began: dict[tuple[str, int], int] = field(default_factory=dict)  # the first n of each bar
    _bars: Bars = field(default_factory=Bars)
    _candidates: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By pattern and bar: the newest position, and the number of matches with growing ones."""

    def read(self, line: str) -> Progress | None:
        """Return the progress that a line shows; None if it shows none, or if its pattern is not chosen yet.

        An empty progress shows that something moves whose steps are not those of the training.
        """
        expression = self.recognizer.expressions.progress
        if expression is not None:
            match = expression.search(line[-USER_LINE_MAX_CHARACTERS:])
            return None if match is None else progress_of(match.groupdict())
        for pattern in self.recognizer.candidates:
            if match := _find(pattern.expression, pattern.needles, line):
                if not self._decides(pattern, match):
                    continue
                self.recognizer.choose(pattern)
                break
        if (chosen := self.recognizer.chosen) is None:
            return None
        for text, needles in ((chosen.expression, chosen.needles), *chosen.also):
            if match := _find(text, needles, line):
                return self._progress(match)
        return None

    def read_checkpoint(self, line: str) -> Checkpoint | None:
        """Return the checkpoint that a line says was saved."""
        own = self.recognizer.expressions.checkpoint
        if own is not None:
            match = own.search(line[-USER_LINE_MAX_CHARACTERS:])
        elif CHECKPOINT_NEEDLE in line:
            matches = (_compiled(expression).search(line) for expression in CHECKPOINT_EXPRESSIONS)
            match = next(filter(None, matches), None)
        else:
            return None
        if match is None:
            return None
        groups = match.groupdict()
        path = groups.get("path") or ""
        step = _whole(groups.get("step"))
        return Checkpoint(step_of_path(path) if step is None else step, path)

    def _decides(self, pattern: Pattern, match: re.Match[str]) -> bool:
        """Count a match; return True for the third with a growing step."""
        if "n" in match.groupdict():
            if (bar := self._bar(match)) is None:
                return False
            name, position = f"{pattern.name} {bar.title} {bar.total}", float(bar.n)
            if bar.epoch is not None:
                position += bar.epoch * bar.total
        elif (value := progress_of(match.groupdict()).position) is not None:
            name, position = pattern.name, value
        else:
            return False
        if len(self._candidates) > BARS_MAX:  # bars of ever new titles
            self._candidates.clear()
        newest, count = self._candidates.get(name, (position, 0))
        if position == newest and count:
            return False
        count = count + 1 if position >= newest else 1
        self._candidates[name] = position, count
        return count >= MATCHES_TO_CHOOSE

    def _progress(self, match: re.Match[str]) -> Progress:
        groups = match.groupdict()
        read = progress_of(groups)
        if "n" not in groups:
            return replace(read, counts_on=read.epoch is not None or "epoch" not in match.string.lower())
        bar = self._bar(match)
        step = None if bar is None else self._bars.step(bar)
        if bar is None or step is None:
            return Progress()
        whole = self.recognizer.chosen is not None and not self.recognizer.chosen.is_generic
        counts_on = bar.counts_on or (whole and bar.total > 0) or self._began.get((bar.title, bar.total), 0) > 0
        epoch = read.epoch if bar.epoch is None else float(bar.epoch)
        return Progress(step=step, loss=read.loss, epoch=epoch, counts_on=counts_on)

    def _bar(self, match: re.Match[str]) -> Bar | None:
        """Return the bar of a match, and remember where it began."""
        bar = read_bar(match)
        if bar is not None and bar.begins and len(self._began) < BARS_MAX:
            self._began[bar.title, bar.total] = bar.n
        return bar
