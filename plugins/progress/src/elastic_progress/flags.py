"""The flags of this distribution. A launch that names one imports this module early, so it imports next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elastic_core import hookimpl
from elastic_core.config import Flag
from elastic_core.config.parse import count_from_zero, not_empty

SECTION = "Progress"
PROGRESS_PATTERN: Flag[str | None] = Flag(
    name="progress_pattern",
    text="A regular expression with groups of the names step, loss, samples and epoch, such as "
    r"'step (?P<step>\d+) loss (?P<loss>\S+)'. Lines of a worker's output that it matches show the worker's "
    "progress. All output of workers then goes through the agent.",
    section=SECTION,
    parse=not_empty,
    metavar="REGEX",
    unset="what Trainer, Lightning, torchtitan, Megatron-LM, DeepSpeed and tqdm print is recognized",
)
CHECKPOINT_PATTERN: Flag[str | None] = Flag(
    name="checkpoint_pattern",
    text="A regular expression for lines which say that a checkpoint was saved; it may have the groups step and path.",
    section=SECTION,
    parse=not_empty,
    metavar="REGEX",
    unset="what torchtitan and Megatron-LM print",
)
NAN_STOP = Flag(
    name="nan_stop",
    text="A worker fails after so many losses in a row that are nan or infinite; 0 for never.",
    section=SECTION,
    parse=count_from_zero,
    default="0",
    metavar="N",
)


@hookimpl
def elastic_flags() -> Sequence[Flag[Any]]:
    """Return the flags that ``elastic_progress.plugin`` reads."""
    return (PROGRESS_PATTERN, CHECKPOINT_PATTERN, NAN_STOP)
