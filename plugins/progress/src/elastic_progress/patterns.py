"""A table of patterns for the steps, losses and checkpoints that training frameworks print.

:mod:`elastic_progress.lines` matches lines with :data:`PATTERNS` and :data:`CHECKPOINT_EXPRESSIONS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
