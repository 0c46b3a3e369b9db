"""Patterns of steps, losses and checkpoints in output: a table of what frameworks print, and expressions of users.

:mod:`elastic_progress.lines` matches lines with :data:`PATTERNS` and :data:`CHECKPOINT_EXPRESSIONS`.

A regular expression cannot be interrupted. So an expression of a user that could take long for some line is refused
(:func:`compile_expression`): by its structure, and by the CPU time that it takes for a few long lines.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_core.config.parse import Wrong
from elastic_core.errors import UsageError
from elastic_core.progress import PROGRESS_GROUPS

_NUMBER = r"[+-]?(?:\d[\d,]*(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+|(?i:nan|inf(?:inity)?))"
_BAR = (
    r"(?<![\d.])(?P<n>\d[\d.]*[kMGT]?)(?:/(?P<total>\d[\d.]*[kMGT]?|\?)|(?:it|batch|step)) "
    r"\[\d[\d:]*(?:<[^,\]]{1,24})?, *(?![\d.?]+[kMGT]?i?B/)[\d.?]+ ?[^\s,\]/]*/[^\s,\]]+"
)
_BAR_NEEDLES = "%|", "it/s", "s/it", "batch [", "step ["
"""Few, since all output is searched for each: of the bars that tqdm draws, and of rates in the usual units."""
_BAR_LOSS = rf"(?:[^\]]*?\b(?:train_|training_|step_|avr_)?[Ll]oss(?:_step|_epoch|/train/total)?=(?P<loss>{_NUMBER}))?"
_LOSS = r"\b(?:reduced_)?(?:train_|training_|total_|lm_)?[Ll]oss(?:_step|_epoch| train)?"
_HAS_LOSS = rf"\A(?=.*?{_LOSS}['\"]?[ \t:=\"]{{1,6}}(?P<loss>{_NUMBER})(?![\w%]))"
"""Looks for a loss anywhere in a line, once, so that the time stays linear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """The lines of one framework."""

    name: str  # for people
    expression: str  # a regular expression with the groups step, loss, samples and epoch, or n and total of a bar
    needles: tuple[str, ...]
    """Each such line has one of these texts, which are searched for first. They should be rare in other lines: of a
    flood, few lines are compared.
    """
    source: str  # where the framework makes such lines
    also: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Further expressions that are read once the pattern is chosen, each with its needles."""
    is_generic: bool = False  # whether a pattern that is not generic replaces this one, once it is found


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
        expression=rf"\bstep: +(?P<step>\d+)(?:/\d+ = [\d.]+%)? +loss: +(?P<loss>{_NUMBER})(?=.* memory: )",
        needles=("loss: ",),
        source="torchtitan, MetricsProcessor.log (components/metrics.py)",
    ),
    Pattern(
        name="Megatron-LM",
        expression=rf"\biteration +(?P<step>\d+)/ *\d+ \|(?=.* elapsed time per iteration)"
        rf"(?:.*? consumed samples: +(?P<samples>\d+) \|)?"
        rf"(?:.*? (?:lm|mtp_1)[ _]loss: +(?P<loss>{_NUMBER}))?",
        needles=("iteration ",),
        source="Megatron-LM, training_log (megatron/training/training.py)",
    ),
    Pattern(
        name="Composer",
        expression=r"\bTrain time/batch: (?P<step>\d+)$",
        needles=("n time/batch: ",),
        also=((rf"\bTrain loss/train/total: (?P<loss>{_NUMBER})", ("n loss/train/total: ",)),),
        source="Composer, ConsoleLogger.log_to_console (loggers/console_logger.py)",
    ),
    Pattern(
        name="OLMo",
        expression=r"\[step=(?P<step>\d+)(?:/\d+)?,epoch=(?P<epoch>\d+)[\],]",
        needles=("[step=",),
        also=((rf"\btrain/(?:CrossEntropyLoss|CE loss)=(?P<loss>{_NUMBER})", (" train/C",)),),
        source="OLMo, Trainer.log_metrics_to_console (olmo/train.py); OLMo-core, ConsoleLoggerCallback",
    ),
    Pattern(
        name="verl",
        expression=rf"\bstep:(?P<step>\d+) - (?=.*?\bactor/)(?:.*?\bactor/pg_loss:(?P<loss>{_NUMBER}))?",
        needles=("step:",),
        source="verl, concat_dict_to_str (utils/logger/aggregate_logger.py)",
    ),
    Pattern(
        name="torch's tutorial of DDP",
        expression=r"\[GPU\d+\] Epoch (?P<epoch>\d+) \| Batchsize: ",
        needles=("] Epoch ",),
        source="pytorch/examples, distributed/ddp-tutorial-series (multigpu_torchrun.py)",
    ),
    Pattern(
        name="DeepSpeed",
        expression=r"\bstep=(?P<step>\d+), skipped=\d+, lr=",
        needles=(", skipped=",),
        is_generic=True,
        source="DeepSpeed, DeepSpeedEngine._report_progress (runtime/engine.py), as often as steps_per_print says",
    ),
    Pattern(
        name="a step and its loss in one line (nanoGPT and others)",
        expression=_HAS_LOSS + r"(?:(?!(?i:eval|valid|\bval\b|test|predict|infer)).)*?(?:\b|_)(?<!per )"
        r"(?:[Ss]tep|STEP|[Ii]ter(?:ation)?|ITER|num_updates)[ \t:=#\[(\"']{1,6}(?P<step>\d+)(?![\w%]|\.\d)",
        needles=("oss",),
        is_generic=True,
        source="nanoGPT, train.py, and many scripts",
    ),
    Pattern(
        name="the batch of an epoch and its loss in one line (torchvision, timm and others)",
        expression=rf"{_HAS_LOSS}(?:.*?\b(?:[Ee]poch|[Tt]rain(?:ing)?)|loss)\b"
        r"[^%|<]{0,40}?\[ *(?P<n>\d+)/(?P<total>\d+)\b",
        needles=("oss",),
        is_generic=True,
        source="torchvision, references/classification; examples/imagenet and mnist; timm, train.py",
    ),
    Pattern(
        name="a rich bar (Lightning, Ultralytics and others)",
        expression=r"[━─╸╺] +(?P<n>\d+)/(?P<total>\d+|\?|-+)(?![\d.,]|\s?[kKMGT]?i?B)"
        rf"(?:.*?\b(?:train_|training_)?loss(?:_step|_epoch)?: *(?P<loss>{_NUMBER}))?",
        needles=("━",),
        is_generic=True,
        source="rich, MofNCompleteColumn; Lightning, RichProgressBar; Ultralytics, TQDM (utils/tqdm.py)",
    ),
    Pattern(
        name="a tqdm bar (Accelerate, diffusers and others)",
        expression=_BAR + _BAR_LOSS,
        needles=_BAR_NEEDLES,
        is_generic=True,
        source="tqdm, format_meter (std.py)",
    ),
)
"""The lines of all frameworks, in the order in which a line is compared with them."""


CHECKPOINT_NEEDLE = "checkpoint"
CHECKPOINT_EXPRESSIONS = (
    # Megatron-LM, save_checkpoint (megatron/training/checkpointing.py)
    r"successfully saved checkpoint from iteration +(?P<step>\d+) to (?P<path>\S+)",
    # torchtitan, CheckpointManager.save (components/checkpoint.py)
    r"Finished saving the checkpoint",
)
"""The lines about a checkpoint that was saved, each of which has the needle."""


USER_LINE_MAX_CHARACTERS = 500  # of a line, its end, for an expression of a user
PROBE_MAX_SECONDS = 0.1  # of CPU, for one line of the greatest length
REPEATS_MAX = 20  # in one expression of a user; the time may double with each
CHECKPOINT_GROUPS = ("step", "path")


@dataclass(frozen=True, slots=True)
class Expressions:
    """The expressions of a user; None for those that are built in."""

    progress: re.Pattern[str] | None = None
    checkpoint: re.Pattern[str] | None = None


BUILT_IN = Expressions()


def compile_expression(
    text: str, groups: Sequence[str], *, needs_group: bool, seconds: Callable[[], float] = time.thread_time
) -> re.Pattern[str]:
    """Compile an expression of a user.

    Raises:
        Wrong: It does not compile, has a group of another name or none at all, or could take long.
    """
    try:
        # What begins with .* matches from the start of a line, if at all; a search would try every place in it.
        compiled = re.compile(rf"\A{text}" if text.startswith(".*") else text)
    except (re.error, RecursionError, OverflowError) as exc:
        raise Wrong(f"is not a regular expression: {exc}") from None
    unknown = [name for name in compiled.groupindex if name not in groups]
    if unknown:
        raise Wrong(f"has the group {unknown[0]!r}; known are {', '.join(groups)}")
    if needs_group and not compiled.groupindex:
        raise Wrong(f"has no named group; it needs one of {', '.join(groups)}")
    parsed = _parse(text)
    if _is_nested(parsed, repeated=False):
        raise Wrong("repeats something that is repeated or has alternatives, which can take for ever")
    if _count_repeats(parsed) > REPEATS_MAX:
        raise Wrong(f"has more than {REPEATS_MAX} repeats, which can take for ever")
    if _is_slow(compiled, _literals(parsed), seconds):
        raise Wrong(f"takes too long for some lines of {USER_LINE_MAX_CHARACTERS} characters")
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
    """Return True if a repeat is within a repeat, or alternatives are: the time may be exponential."""
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
    count = 0
    for op, value in parsed:
        name = str(op)
        count += name in _REPEATS and int(value[0]) != int(value[1])
        count += sum(map(_count_repeats, _parts(name, value)))
    return count


def _literals(parsed: Any, *, required: bool = False) -> list[str]:
    """Return the literal texts of an expression, wherever they are; if ``required``, those that each match has."""
    found, run = [], ""
    for op, value in parsed:
        name = str(op)
        if name == "LITERAL":
            run += chr(value)
            continue
        found += [run] if run else []
        run = ""
        if not required or (name == "SUBPATTERN" and not value[1]) or (name in _REPEATS and int(value[0]) > 0):
            found += [text for part in _parts(name, value) for text in _literals(part, required=required)]
    return [*found, run] if run else found


def _is_slow(expression: re.Pattern[str], literals: Sequence[str], seconds: Callable[[], float]) -> bool:
    """Return True if a line takes long that has one character many times, or the literal texts a few times.

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
    return max(_literals(_parse(text), required=True), key=len, default="")


def compile_expressions(progress_pattern: str | None = None, checkpoint_pattern: str | None = None) -> Expressions:
    """Compile what a run was given as ``--progress_pattern`` and ``--checkpoint_pattern``.

    Raises:
        UsageError: One of them cannot be used.
    """
    return Expressions(
        _compile_flag("progress", progress_pattern, PROGRESS_GROUPS, r"step (?P<step>\d+) loss (?P<loss>\S+)"),
        _compile_flag(
            "checkpoint", checkpoint_pattern, CHECKPOINT_GROUPS, r"saved (?P<path>\S+) at step (?P<step>\d+)"
        ),
    )


def _compile_flag(kind: str, text: str | None, groups: Sequence[str], example: str) -> re.Pattern[str] | None:
    try:
        return None if text is None else compile_expression(text, groups, needs_group=kind == "progress")
    except Wrong as wrong:
        raise UsageError(f"--{kind}_pattern {text!r} {wrong}. An example: {example}") from None
