"""The flags of this distribution. A launch that names one imports this module early, so it imports next to nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from elastic_core import hookimpl
from elastic_core.config import Flag
from elastic_core.config.parse import Wrong, positive_seconds

SECTION = "Health"


def health_checks(text: str) -> tuple[str, ...]:
    """Parse names of checks, separated by commas; a text with a blank or a slash is one command."""
    text = text.strip()
    parts = (text,) if re.search(r"[\s/]", text) else tuple(part for part in text.split(",") if part)
    for part in parts:
        if part.startswith("-"):
            raise Wrong(f"has {part!r}, which is neither the name of a check nor a command")
    return parts


HEALTH_CHECK = Flag(
    name="health_check",
    text="Also run these checks before this node enters the job: gpu,matmul,allreduce, or a command whose exit code 0 "
    "means healthy. May be repeated. The word none switches off the default checks.",
    section=SECTION,
    parse=health_checks,
    default="",
    metavar="NAMES|COMMAND",
    unset="disk,memory,shm, with elastic-health",
    repeated=True,
    after="signals_to_handle",
)
HEALTH_TIMEOUT = Flag(
    name="health_timeout",
    text="How long each check may take. After that the check fails, and all its processes are killed.",
    section=SECTION,
    parse=positive_seconds,
    default="60",
    metavar="SECONDS",
    after=HEALTH_CHECK.name,
)
HEALTH_RETRY: Flag[float | None] = Flag(
    name="health_retry",
    text="Run failed checks again after this pause, until they pass or the job has ended (with a foreign rendezvous "
    "handler: for join_timeout).",
    section=SECTION,
    parse=positive_seconds,
    metavar="SECONDS",
    unset="the agent ends with exit code 72",
    after=HEALTH_TIMEOUT.name,
)


@hookimpl
def elastic_flags() -> Sequence[Flag[Any]]:
    """Return the flags that ``elastic_health.plugin`` reads."""
    return (HEALTH_CHECK, HEALTH_TIMEOUT, HEALTH_RETRY)
