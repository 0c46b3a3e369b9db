"""The policies of a run: which are on, by the text of ``--failure_policy``, and the strictest verdict of them.

The text changes what it names; the other policies keep their defaults: ``budget=10/1h,quarantine=off``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from elastic_core.config import RunConfig
from elastic_core.config.parse import Wrong
from elastic_core.errors import UsageError, did_you_mean
from elastic_core.incidents import SPENDS_A_RESTART, Action, History, Incident, Verdict, strictest
from elastic_policies.exclusions import Quarantine, TornCheckpoint
from elastic_policies.flags import SET_ASIDE_TORN_CHECKPOINTS
from elastic_policies.hopeless import Classification, NanLoss, NoProgress
from elastic_policies.restarts import Backoff, Budget, Preemptions

POLICIES: Mapping[str, type[Any]] = {
    policy.NAME: policy
    for policy in (NanLoss, TornCheckpoint, Classification, NoProgress, Budget, Preemptions, Quarantine, Backoff)
}
"""Every policy by name: a class with NAME, FORM, ``parse`` and ``judge``, in the order in which they are asked."""
DEFAULTS = "nan_loss=stop,torn_checkpoint=2,no_progress=3/5,quarantine=3/1h:30m"
"""The policies without ``--failure_policy``, besides ``--max_restarts``, which is core's."""
OFF = "off"


def parse_policies(text: str, config: RunConfig | None = None) -> dict[str, Any]:
    """Return the policies that are on, with their parameters, by name, in the order in which they are asked.

    ``config`` is the run, whose other flags some of them read.

    Raises:
        UsageError: A part is not of the form NAME=VALUE, names no policy or one twice, or its value is wrong.
    """
    chosen = {**_parse_parts(DEFAULTS), **_parse_parts(text)}
    if config is not None and (torn := chosen.get(TornCheckpoint.NAME)) is not None:
        place, set_aside = config.checkpoint_path or "", config.of(SET_ASIDE_TORN_CHECKPOINTS)
        chosen[TornCheckpoint.NAME] = replace(torn, place=place, set_aside=set_aside)
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


def judge(incident: Incident, history: History, policies: Mapping[str, Any]) -> Verdict | None:
    """Return the strictest verdict of ``policies``; None if all abstain.

    A failure that quarantines its host is not held against the program: the host may have kept it from progress. Why a
    host is not quarantined, and which checkpoint may be torn, is said beside the verdict of the others.
    """
    if incident.kind not in SPENDS_A_RESTART:  # the protocol handles it
        return None
    asked = {name: policy.judge(incident, history) for name, policy in policies.items()}
    verdicts: dict[str, Verdict] = {
        name: replace(verdict, policy=name) for name, verdict in asked.items() if verdict is not None
    }
    about_host = verdicts.get(Quarantine.NAME)
    if about_host is not None and about_host.action is Action.EXCLUDE_HOST:
        verdicts.pop(NoProgress.NAME, None)
    if not verdicts:
        return None
    found = strictest([*verdicts.values()])
    for other in (about_host, verdicts.get(TornCheckpoint.NAME)):
        if other is not None and other.action is Action.RESTART and other.reason not in found.reason:
            found = replace(found, reason=f"{found.reason}; {other.reason}")
    return found
