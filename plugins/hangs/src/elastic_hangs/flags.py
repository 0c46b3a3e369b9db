"""The flags of this distribution. A launch that names one imports this module early, so it imports next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elastic_core import hookimpl
from elastic_core.config import Flag
from elastic_core.config.parse import positive_seconds, seconds

HANG_WINDOW: Flag[float | None] = Flag(
    name="hang_window",
    text="If a worker makes no progress (no new step, no output, no use of a CPU) for so long, all nodes look where "
    "their ranks are, and a job that hangs is reported. 0 switches this off. A report ends nothing.",
    section="Failure",
    parse=seconds,
    metavar="SECONDS",
    unset="300, or ten times the longest step if that is longer",
    after="failure_grace",
)
HANG_TIMEOUT: Flag[float | None] = Flag(
    name="hang_timeout",
    text="In place of --hang_window: in a job that hangs, the rank that the others wait for is also killed, which ends "
    "the round and spends a restart.",
    section="Failure",
    parse=positive_seconds,
    metavar="SECONDS",
    after=HANG_WINDOW.name,
)


@hookimpl
def elastic_flags() -> Sequence[Flag[Any]]:
    """Return the flags that ``elastic_hangs.monitor`` reads."""
    return (HANG_WINDOW, HANG_TIMEOUT)
