"""A failure policy: do not restart a worker that says it was called wrongly.

A plugin may be a module, as here: its marked functions are the implementations.
"""

from __future__ import annotations

from elastic_core import hookimpl
from elastic_core.incidents import Action, Incident, Verdict

USAGE_ERROR = 2  # the exit code of argparse


@hookimpl
def elastic_judge_failure(incident: Incident) -> Verdict | None:
    """Give up on a usage error; abstain otherwise. A hook's arguments that are not needed can be left out."""
    if incident.exit_code == USAGE_ERROR:
        return Verdict(Action.GIVE_UP, "a worker exited with code 2, a usage error, which no restart mends")
    return None
