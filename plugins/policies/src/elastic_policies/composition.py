"""All policies together: each is asked, and the strictest verdict counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic_core.incidents import History, Incident, Verdict, strictest
from elastic_policies import no_progress, quarantine
from elastic_policies.options import POLICIES
from elastic_policies.past import is_failure


def judge(incident: Incident, history: History, policies: Mapping[str, Any]) -> Verdict | None:
    """Return the strictest verdict of ``policies``, parameters by name; None if all abstain.

    A failure that quarantines its host is not held against the program: the host may have kept it from progress.
    """
    if not is_failure(incident):
        return None
    answers = {name: POLICIES[name].judge(incident, history, parameters) for name, parameters in policies.items()}
    if answers.get(quarantine.NAME) is not None:
        answers.pop(no_progress.NAME, None)
    verdicts = [verdict for verdict in answers.values() if verdict is not None]
    return strictest(verdicts) if verdicts else None
