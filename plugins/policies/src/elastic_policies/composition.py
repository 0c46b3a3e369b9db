"""All policies together: each is asked, and the strictest verdict counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from elastic_core.incidents import Action, History, Incident, Verdict, strictest
from elastic_policies import no_progress, quarantine, torn_checkpoint
from elastic_policies.options import POLICIES
from elastic_policies.past import is_failure


def judge(incident: Incident, history: History, policies: Mapping[str, Any]) -> Verdict | None:
    """Return the strictest verdict of ``policies``, parameters by name; None if all abstain.

    A failure that quarantines its host is not held against the program: the host may have kept it from progress. Why a
    host is not quarantined, and which checkpoint may be torn, is said beside the verdict of the others.
    """
    if not is_failure(incident):
        return None
    answers = {name: POLICIES[name].judge(incident, history, parameters) for name, parameters in policies.items()}
    verdicts = [verdict for verdict in answers.values() if verdict is not None]
    about_host: Verdict | None = answers.get(quarantine.NAME)
    if about_host is not None and about_host.action is Action.EXCLUDE_HOST:
        verdicts = [verdict for name, verdict in answers.items() if verdict is not None and name != no_progress.NAME]
    if not verdicts:
        return None
    found = strictest(verdicts)
    for told in (about_host, answers.get(torn_checkpoint.NAME)):
        if told is not None and told.action is Action.RESTART and told.reason not in found.reason:
            found = replace(found, reason=f"{found.reason}; {told.reason}")
    return found
