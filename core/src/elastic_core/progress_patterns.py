"""How steps, losses and checkpoints are read from lines that a script prints anyway.

Everything here is pure, but for the CPU time of a check of users' expressions. :data:`PATTERNS` is the table of what
frameworks print. :class:`Scanner` cuts a stream into the lines that are worth a look, :class:`Recognizer` finds the
pattern that a job prints, and :class:`LineReader` reads the lines of one worker. ``agent/progress_reader.py`` drives
them, and imports this module with the first output of a worker.

A regular expression cannot be interrupted. So lines are cut to their ends, the lines of a second are counted, and an
expression of a user is refused where it could take long (:func:`compile_expression`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from elastic_core.progress import BUILT_IN, LARGEST_STEP, PROGRESS_GROUPS, Checkpoint, Expressions, Progress

LINE_MAX_BYTES = 2000  # of a line, its end; built-in expressions take linear time
USER_LINE_MAX_CHARACTERS = 500  # of a line, its end, for an expression of a user
LINES_PER_SECOND = 25.0  # of one stream that are matched
LINES_AT_ONCE = 25.0
MATCHES_TO_CHOOSE = 3  # with growing steps, until a pattern is chosen
PROBE_MAX_SECONDS = 0.1  # of CPU, for one line of the greatest length
REPEATS_MAX = 20  # in one expression of a user; the time may double with each
CHECKPOINT_GROUPS = ("step", "path")
PROGRESS_EXAMPLE = r"step (?P<step>\d+) loss (?P<loss>\S+)"
CHECKPOINT_EXAMPLE = r"saved (?P<path>\S+) at step (?P<step>\d+)"

_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NUMBER = r"[+-]?(?:\d[\d,]*(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+|(?i:nan|inf(?:inity)?))"
_BAR = r"(?<!\d)(?P<n>\d+)/(?P<total>\d+) \[\d[\d:]*<[^,\]]{1,24}, *[\d.?]+ ?[^\s,\]/]*/[^\s,\]]+"
_BAR_NEEDLES = tuple(f"{digit}<" for digit in range(10))
"""Between the time that has passed and the time that is left. A traceback has many "<", as in "<module>"."""
_BAR_LOSS = rf"(?:[^\]]*?\b(?:train_|training_|step_)?loss(?:_step|_epoch)?=(?P<loss>{_NUMBER}))?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """What one framework prints.

    Attributes:
        name: For people.
        expression: A regular expression with the groups step, loss, samples and epoch, or n and total of a bar.
        needles: Each such line has one of these texts, which are searched for first. They should be rare in other
            lines: of a flood, few lines are compared.
        also: Further expressions that are read once the pattern is chosen, each with its needles.
        is_generic: Whether a pattern that is not generic replaces this one, once it is found.
        source: Where the framework makes such lines.
    """

    name: str
    expression: str
    needles: tuple[str, ...]
    source: str
    also: tuple[tuple[str, tuple[str, ...]], ...] = ()
    is_generic: bool = False


PATTERNS: Sequence[Pattern] = (
    Pattern(
        name="Hugging Face Trainer",
        expression=rf"\{{'loss': '?(?P<loss>{_NUMBER})'?,.*?'epoch': '?(?P<epoch>{_NUMBER})",
        needles=("'loss': ",),
        also=((_BAR, _BAR_NEEDLES),),
        source="transformers, ProgressCallback.on_log and its tqdm bar (trainer_callback.py)",
    ),
    Pattern(
        name="Lightning",
        expression=rf"\bEpoch (?P<epoch>\d+)(?:/\S+)?: (?=.*\bv_num=).*?{_BAR}{_BAR_LOSS}",
        needles=("v_num=",),
        source="Lightning, TQDMProgressBar (callbacks/progress/tqdm_progress.py)",
    ),
    Pattern(
        name="torchtitan",
        expression=rf"\bstep: +(?P<step>\d+)(?:/\d+ = [\d.]+%)? +loss: +(?P<loss>{_NUMBER})",
        needles=("loss: ",),
        source="torchtitan, MetricsProcessor.log (components/metrics.py)",
    ),
    Pattern(
        name="Megatron-LM",
        expression=rf"\biteration +(?P<step>\d+)/ *\d+ \|(?:.*? consumed samples: +(?P<samples>\d+) \|)?"
        rf"(?:.*? (?:lm|mtp_1)[ _]loss: +(?P<loss>{_NUMBER}))?",
        needles=("iteration ",),
        source="Megatron-LM, training_log (megatron/training/training.py)",
    ),
    Pattern(
        name="DeepSpeed",
        expression=r"\bstep=(?P<step>\d+), skipped=\d+, lr=",
        needles=(", skipped=",),
        is_generic=True,
        source="DeepSpeed, DeepSpeedEngine._report_progress (runtime/engine.py), as often as steps_per_print says",
    ),
    Pattern(
        name="a tqdm bar (Accelerate, diffusers and others)",
        expression=_BAR + _BAR_LOSS,
        needles=_BAR_NEEDLES,
        is_generic=True,
        source="tqdm, format_meter (std.py)",
    ),
)
"""What frameworks print, in the order in which a line is compared with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPattern:
    """What one framework prints once a checkpoint is saved."""

    name: str
    expression: str
    source: str


CHECKPOINT_NEEDLE = "checkpoint"
CHECKPOINT_PATTERNS: Sequence[CheckpointPattern] = (
    CheckpointPattern(
        name="Megatron-LM",
        expression=r"successfully saved checkpoint from iteration +(?P<step>\d+) to (?P<path>\S+)",
        source="Megatron-LM, save_checkpoint (megatron/training/checkpointing.py)",
    ),
    CheckpointPattern(
        name="torchtitan",
        expression=r"Finished saving the checkpoint",
        source="torchtitan, CheckpointManager.save (components/checkpoint.py)",
    ),
)

NOT_TRAINING = re.compile(
    r"map|filter|load|tokeniz|generat|fetch|resolv|shard|valid|eval|test|predict|sanity|saving|upload|cast|"
    r"creat|prepar|warm|extract|read|writ|convert|pack|group|cach|infer|sampl",
    re.IGNORECASE,
)
"""Titles of bars that are no training: preparation of data, evaluation, files."""
_PERCENT = re.compile(r":?\s*\d+%.*", re.DOTALL)
_EPOCH = re.compile(r"\bepoch\D{0,4}(\d+)", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")
_STEP_OF_PATH = re.compile(r"(?:step|iter|checkpoint|ckpt)[a-z]*[-_=]?(\d+)", re.IGNORECASE)


# Expressions of users ------------------------------------------------------------------------------------------------


class WrongExpression(ValueError):
    """Why an expression cannot be used, as a clause that follows the expression in a message."""


def compile_expression(
    text: str, groups: Sequence[str], *, needs_group: bool, seconds: Callable[[], float] = time.thread_time
) -> re.Pattern[str]:
    """Compile an expression of a user.

    Args:
        text: The expression.
        groups: The named groups that it may have.
        needs_group: Whether it needs at least one of them.
        seconds: The CPU time of this thread.

    Raises:
        WrongExpression: It does not compile, has a group of another name or none at all, or could take long.
    """
    try:
        # What begins with .* matches from the start of a line, if at all; a search would try every place in it.
        compiled = re.compile(rf"\A{text}" if text.startswith(".*") else text)
    except (re.error, RecursionError, OverflowError) as exc:
        raise WrongExpression(f"is not a regular expression: {exc}") from None
    unknown = [name for name in compiled.groupindex if name not in groups]
    if unknown:
        raise WrongExpression(f"has the group {unknown[0]!r}; known are {', '.join(groups)}")
    if needs_group and not compiled.groupindex:
        raise WrongExpression(f"has no named group; it needs one of {', '.join(groups)}")
    parsed = _parse(text)
    if _is_nested(parsed, repeated=False):
        raise WrongExpression("repeats something that is repeated or has alternatives, which can take for ever")
    if _count_repeats(parsed) > REPEATS_MAX:
        raise WrongExpression(f"has more than {REPEATS_MAX} repeats, which can take for ever")
    if _is_slow(compiled, _literals(parsed), seconds):
        raise WrongExpression(f"takes too long for some lines of {USER_LINE_MAX_CHARACTERS} characters")
    return compiled


def _parse(text: str) -> Any:
    try:
        from re import _parser  # type: ignore[attr-defined]  # Python 3.11 and later
    except ImportError:
        import sre_parse as _parser  # type: ignore[import-not-found,no-redef,unused-ignore]
    return _parser.parse(text)


_PROBE_LENGTHS = (8, 12, 16, 22, 32, 45, 64, 90, 125, 180, 250, 350, USER_LINE_MAX_CHARACTERS)
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


def _parts(name: str, value: Any) -> list[Any]:
    """Return the expressions within an element of a parsed expression."""
    if name in _REPEATS:
        return [value[2]]
    if name == "SUBPATTERN":
        return [value[3]]
    if name == "BRANCH":
        return list(value[1])
    if name in ("ASSERT", "ASSERT_NOT"):
        return [value[1]]
    if name == "ATOMIC_GROUP":
        return [value]
    if name == "GROUPREF_EXISTS":
        return [part for part in value[1:] if part is not None]
    return []


def _is_nested(parsed: Any, *, repeated: bool) -> bool:
    """Whether something is repeated that is repeated itself or has alternatives: the time may be exponential."""
    for op, value in parsed:
        name, inside = str(op), repeated
        if name in _REPEATS:
            least, most, _ = value
            if repeated and int(least) != int(most):
                return True
            inside = repeated or int(most) > 1
        elif name == "BRANCH" and repeated:
            return True
        if any(_is_nested(part, repeated=inside) for part in _parts(name, value)):
            return True
    return False


def _count_repeats(parsed: Any) -> int:
    """Return how many repeats of a varying count there are."""
    count = 0
    for op, value in parsed:
        name = str(op)
        count += name in _REPEATS and int(value[0]) != int(value[1])
        count += sum(map(_count_repeats, _parts(name, value)))
    return count


def _literals(parsed: Any) -> list[str]:
    """Return the literal texts of an expression, wherever they are."""
    found, run = [], ""
    for op, value in parsed:
        if str(op) == "LITERAL":
            run += chr(value)
            continue
        found += [run] if run else []
        run = ""
        for part in _parts(str(op), value):
            found += _literals(part)
    return [*found, run] if run else found


def _is_slow(expression: re.Pattern[str], literals: Sequence[str], seconds: Callable[[], float]) -> bool:
    """Whether a line takes long that has one character many times, or what the expression looks for a few times.

    Lines grow, so that none takes ages.
    """
    texts = (" ".join(literals), " 1 ".join([*literals, ""]))
    units = ("1", "a", " ", "=")
    lines = [unit * length for length in _PROBE_LENGTHS for unit in units]
    for line in [*lines, *(text * count for count in (1, 2, 3) for text in texts)]:
        began = seconds()
        expression.search(line[:USER_LINE_MAX_CHARACTERS])
        if seconds() - began > PROBE_MAX_SECONDS:
            return True
    return False


def needle_of(text: str) -> str:
    """Return the longest text that is in every line which the expression ``text`` matches; '' for none."""
    if re.compile(text).flags & (re.IGNORECASE | re.VERBOSE):
        return ""
    return max(_required(_parse(text)), key=len, default="")


def _required(parsed: Any) -> list[str]:
    found, run = [], ""
    for op, value in parsed:
        name = str(op)
        if name == "LITERAL":
            run += chr(value)
            continue
        found += [run] if run else []
        run = ""
        if (name == "SUBPATTERN" and not value[1]) or (name in _REPEATS and int(value[0]) > 0):
            found += [text for part in _parts(name, value) for text in _required(part)]
    return [*found, run] if run else found


def compile_expressions(progress_pattern: str | None = None, checkpoint_pattern: str | None = None) -> Expressions:
    """Compile what a run was given as ``--progress_pattern`` and ``--checkpoint_pattern``.

    Raises:
        WrongExpression: One of them cannot be used.
    """
    return Expressions(
        None if progress_pattern is None else compile_expression(progress_pattern, PROGRESS_GROUPS, needs_group=True),
        None
        if checkpoint_pattern is None
        else compile_expression(checkpoint_pattern, CHECKPOINT_GROUPS, needs_group=False),
    )


# Lines ---------------------------------------------------------------------------------------------------------------


class Scanner:
    """Cuts one stream into lines, and returns those that are worth matching: the newest, and a limited number a second.

    A carriage return ends a line too. What follows one and has no end yet is returned as well where it ends with a
    bracket, as the newest state of a progress bar does.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._follows_return = False
        self._allowed, self._at = LINES_AT_ONCE, 0.0
        self._waiting: tuple[bytes, float] | None = None
        """The newest line that there was no time for, and when it came."""
        self._shown = b""
        """The bar without an end that was returned already."""

    def feed(self, data: bytes, needles: Collection[bytes] | None, now: float) -> list[str]:
        """Return lines that ``data`` completes, oldest first.

        Args:
            data: What was read from the stream.
            needles: Texts of which a line must have one; None for any line.
            now: Seconds, monotonic.
        """
        data = self._rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        whole, rest = data[:end], data[end:]
        if end:
            self._follows_return = whole.endswith(b"\r")
        self._rest = rest[-LINE_MAX_BYTES:]
        if not _has_any(whole, needles) and not (self._follows_return and _has_any(rest, needles)):
            return []
        return self._pick(self._candidates(whole, needles), now)

    def take_waiting(self) -> tuple[list[str], float]:
        """Return the newest line for which there was no time, if none came after it, and when it came."""
        waiting, self._waiting = self._waiting, None
        return ([], 0.0) if waiting is None else ([_text(waiting[0])], waiting[1])

    def finish(self, needles: Collection[bytes] | None) -> list[str]:
        """Return the last line of the stream, if it has no end."""
        last, self._rest = self._rest.strip(), b""
        return [_text(last)] if last and last != self._shown and _has_any(last, needles) else []

    def _candidates(self, whole: bytes, needles: Collection[bytes] | None) -> list[bytes]:
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
                    break
        return found

    def _pick(self, newest_first: list[bytes], now: float) -> list[str]:
        self._allowed = min(LINES_AT_ONCE, self._allowed + (now - self._at) * LINES_PER_SECOND)
        self._at = now
        picked = newest_first[: int(self._allowed)]
        self._allowed -= len(picked)
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
    return _STYLE.sub("", text) if "\x1b" in text else text


# Readings ------------------------------------------------------------------------------------------------------------


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


def _find(expression: str, needles: Sequence[str], line: str) -> re.Match[str] | None:
    return _compiled(expression).search(line) if any(needle in line for needle in needles) else None


@dataclass(frozen=True, slots=True)
class Bar:
    """The state of a progress bar: ``n`` of ``total`` under a title whose digits are cut out."""

    title: str
    n: int
    total: int
    epoch: int | None = None


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
        if len(self._counts) > 100 and key not in self._counts:
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
        if current.n < total or self._counts[key].growths < MATCHES_TO_CHOOSE:
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
    return Bar(_DIGITS.sub("#", title), n, total, None if epoch is None else int(epoch[1][:9]))


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


def step_of_path(path: str) -> int | None:
    """Return the step that the name of a checkpoint says, as ``checkpoint-500`` or ``epoch=3-step=1200.ckpt``."""
    for part in reversed(path.split("/")):
        if found := _STEP_OF_PATH.findall(part):
            return _whole(found[-1])
    return None


@dataclass(slots=True)
class _Candidate:
    position: float
    count: int = 1


class Recognizer:
    """Finds the pattern that the workers of a node print; they run one program, so one choice holds for all of them."""

    def __init__(self, expressions: Expressions = BUILT_IN) -> None:
        self.expressions = expressions
        self.chosen: Pattern | None = None
        self.needles: tuple[bytes, ...] | None = ()
        """Texts of which a line must have one to be worth reading; None for any line."""
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
            for pattern in (*self.candidates, *([] if self.chosen is None else [self.chosen])):
                texts += pattern.needles
            if self.chosen is not None:
                texts += [needle for _, needles in self.chosen.also for needle in needles]
        if self.expressions.checkpoint is not None:
            texts.append(needle_of(self.expressions.checkpoint.pattern))
        else:
            texts.append(CHECKPOINT_NEEDLE)
        self.needles = tuple(dict.fromkeys(text.encode() for text in texts)) if all(texts) else None


@dataclass(slots=True)
class LineReader:
    """Reads the lines of one worker, of both its streams.

    Attributes:
        recognizer: The node's.
    """

    recognizer: Recognizer
    _bars: Bars = field(default_factory=Bars)
    _candidates: dict[str, _Candidate] = field(default_factory=dict)

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
            matches = (_compiled(pattern.expression).search(line) for pattern in CHECKPOINT_PATTERNS)
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
        """Count a match; whether it is the third with a growing step."""
        if "n" in match.groupdict():
            if (bar := read_bar(match)) is None:
                return False
            name, position = f"{pattern.name} {bar.title} {bar.total}", float(bar.n)
            if bar.epoch is not None:
                position += bar.epoch * bar.total
        elif (value := progress_of(match.groupdict()).position) is not None:
            name, position = pattern.name, value
        else:
            return False
        if len(self._candidates) > 100:  # bars of ever new titles
            self._candidates.clear()
        seen = self._candidates.get(name)
        if seen is None or position < seen.position:
            self._candidates[name] = _Candidate(position)
        elif position > seen.position:
            seen.position, seen.count = position, seen.count + 1
            return seen.count >= MATCHES_TO_CHOOSE
        return False

    def _progress(self, match: re.Match[str]) -> Progress:
        groups = match.groupdict()
        read = progress_of(groups)
        if "n" not in groups:
            return read
        bar = read_bar(match)
        step = None if bar is None else self._bars.step(bar)
        if bar is None or step is None:
            return Progress()
        epoch = read.epoch if bar.epoch is None else float(bar.epoch)
        return Progress(step=step, loss=read.loss, epoch=epoch)
