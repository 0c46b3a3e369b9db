"""Classification: a program that is wrong is not restarted again and again."""

from __future__ import annotations

from elastic_core.incidents import Action, FailureClass, History, Incident, Verdict
from elastic_core.protocol import MAX_FAILURES
from elastic_policies.durations import parse_count
from elastic_policies.past import failed_alike, since_progress

NAME = "classification"
FORM = "N, such as 2: the job ends at the N-th equal failure of the class 'script'"


def parse(text: str) -> int:
    """Return the number of equal failures; raise Wrong for another text."""
    return parse_count(text, least=1, most=MAX_FAILURES)


def judge(incident: Incident, history: History, most: int) -> Verdict | None:
    """Give up at the ``most``-th equal failure of the program itself: syntax, names, types, shapes, misuse of CUDA."""
    if incident.failure_class is not FailureClass.SCRIPT:
        return None
    equal = 1 + sum(failed_alike(failure, incident) for failure in since_progress(history, incident))
    if equal < most:
        return None
    what = incident.exception or "the failure"
    times = "" if equal == 1 else f", {equal} times"
    return Verdict(Action.GIVE_UP, f"{what} is an error of the program (classification={most}){times}", policy=NAME)
