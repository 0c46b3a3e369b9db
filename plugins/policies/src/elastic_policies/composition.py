"""All policies together: each is asked, and the strictest verdict counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from elastic_core.incidents import SPENDS_A_RESTART, Action, History, Incident, Verdict, strictest
from elastic_policies import no_progress, quarantine, torn_checkpoint
from elastic_policies.options import POLICIES


def judge(incident: Incident, history: History, policies: Mapping[str, Any]) -> Verdict | None:
    """Return the strictest verdict of ``policies``, parameters by name; None if all abstain.

    A failure that quarantines its host is not held against the program: the host may have kept it from progress. Why a
    host is not quarantined, and which checkpoint may be torn, is said beside the verdict of the others.
    """
    if incident.kind not in SPENDS_A_RESTART:  # the protocol handles it
        return None
    verdicts: dict[str, Verdict] = {}
    for name, parameters in policies.items():
        if (verdict := POLICIES[name].judge(incident, history, parameters)) is not None:
            verdicts[name] = verdict
    about_host = verdicts.get(quarantine.NAME)
    if about_host is not None and about_host.action is Action.EXCLUDE_HOST:
        verdicts.pop(no_progress.NAME, None)
    if not verdicts:
        return None
    found = strictest([*verdicts.values()])
    for other in (about_host, verdicts.get(torn_checkpoint.NAME)):
        if other is not None and other.action is Action.RESTART and other.reason not in found.reason:
            found = replace(found, reason=f"{found.reason}; {other.reason}")
    return found
