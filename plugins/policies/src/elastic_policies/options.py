"""The text of ``--failure_policy``: which policies are on, with which parameters.

The text changes what it names; the other policies keep their defaults: ``budget=10/1h,quarantine=off``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from elastic_core.config.parse import Wrong
from elastic_core.errors import UsageError, did_you_mean
from elastic_policies import (
    backoff,
    budget,
    classification,
    nan_loss,
    no_progress,
    preemptions,
    quarantine,
    torn_checkpoint,
)
from elastic_policies.flags import SET_ASIDE_TORN_CHECKPOINTS

if TYPE_CHECKING:
    from elastic_core.config import RunConfig

POLICIES: Mapping[str, ModuleType] = {
    module.NAME: module
    for module in (nan_loss, torn_checkpoint, classification, no_progress, budget, preemptions, quarantine, backoff)
}
"""Every policy by name: a module with NAME, FORM, ``parse`` and ``judge``, in the order in which they are asked."""
DEFAULTS = "nan_loss=stop,torn_checkpoint=2,no_progress=3/5,quarantine=3/1h:30m"
"""The policies without ``--failure_policy``, besides ``--max_restarts``, which is core's."""
OFF = "off"


def parse_policies(text: str, config: RunConfig | None = None) -> dict[str, Any]:
    """Return the parameters of the policies that are on, by name, in the order in which they are asked.

    ``config`` is the run, whose other flags some of them read.

    Raises:
        UsageError: A part is not of the form NAME=VALUE, names no policy or one twice, or its value is wrong.
    """
    given = _parse_parts(text)
    chosen = {**_parse_parts(DEFAULTS), **given}
    if config is not None and (torn := chosen.get(torn_checkpoint.NAME)) is not None:
        place, set_aside = config.checkpoint_path or "", config.of(SET_ASIDE_TORN_CHECKPOINTS)
        chosen[torn_checkpoint.NAME] = replace(torn, place=place, set_aside=set_aside)
    return {name: chosen[name] for name in POLICIES if chosen.get(name) is not None}


def _parse_parts(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in POLICIES:
            raise UsageError(
                f"--failure_policy {part!r}: there is no policy {name!r}.{did_you_mean(name, POLICIES)}",
                hint=f"The policies are: {', '.join(POLICIES)}.",
            )
        form = f"{name}={POLICIES[name].FORM}; {name}={OFF} turns it off."
        if not equals or not value:
            raise UsageError(f"--failure_policy {part!r} is not of the form NAME=VALUE.", hint=f"Write {form}")
        if name in found:
            raise UsageError(f"--failure_policy gives {name!r} twice.")
        try:
            found[name] = None if value == OFF else POLICIES[name].parse(value)
        except Wrong as wrong:
            raise UsageError(f"--failure_policy {part!r} {wrong}.", hint=f"Write {form}") from None
    return found
