"""The flags of this distribution. A launch that names one imports this module early, so it imports next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elastic_core import hookimpl
from elastic_core.config import Flag
from elastic_core.config.parse import switch


def has_budget(failure_policy: str) -> bool:
    """Return True if the text of ``--failure_policy`` names a budget of restarts."""
    parts = ["".join(part.split()) for part in failure_policy.split(",")]
    return any(part.startswith("budget=") and part != "budget=off" for part in parts)


FAILURE_POLICY = Flag(
    name="failure_policy",
    text="Rules for when the job is restarted after a failure, how soon, and on which hosts: "
    "budget=10/1h,backoff=1s..60s. The flag needs elastic-policies, whose page lists all policies.",
    section="Failure",
    parse=str,
    default="",
    metavar="NAME=VALUE,...",
    after="max_restarts",
    agreed=True,
    limits_restarts=has_budget,
)
SET_ASIDE_TORN_CHECKPOINTS = Flag(
    name="set_aside_torn_checkpoints",
    text="If two rounds in a row fail to load a checkpoint below --checkpoint_path, rename it, so that the next round "
    "loads the one before it. Without this flag the job ends and names it. The flag needs elastic-policies.",
    section="Failure",
    parse=switch,
    default="0",
    after="failure_policy",
)


@hookimpl
def elastic_flags() -> Sequence[Flag[Any]]:
    """Return the flags that ``elastic_policies.plugin`` reads."""
    return (FAILURE_POLICY, SET_ASIDE_TORN_CHECKPOINTS)
