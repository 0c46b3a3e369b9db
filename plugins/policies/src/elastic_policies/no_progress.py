"""No progress: a bug that ends every round at the same place ends the job."""

from __future__ import annotations

from elastic_core.incidents import Action, Failure, History, Incident, Verdict
from elastic_core.known_failures import FailureClass, classify
from elastic_policies.durations import parse_count
from elastic_policies.past import MAX_FAILURES, class_of, is_equal, since_progress

NAME = "no_progress"
FORM = "N, such as 3: the job ends at the N-th failure in a row without a newer step"
GAP_SECONDS = 600.0
"""Where steps are not known: rounds that lasted longer may have trained, so their failures are not one bug's."""
NO_BUG = frozenset({FailureClass.INFRASTRUCTURE, FailureClass.PEER, FailureClass.PREEMPTION})


def parse(text: str) -> int:
    """Return the number of failures; raise Wrong for another text."""
    return parse_count(text, least=2, most=MAX_FAILURES)


def judge(incident: Incident, history: History, most: int) -> Verdict | None:
    """Give up at the ``most``-th failure in a row without a newer step, or with an equal exception at short intervals.

    The second counts where steps are not known. Preemptions do not count.
    """
    if classify(incident) is FailureClass.PREEMPTION:
        return None
    before = [one for one in since_progress(history.failures, incident) if class_of(one) is not FailureClass.PREEMPTION]
    known = [failure.step for failure in before if failure.step is not None]
    if incident.step is not None and len(known) >= most - 1:
        newest = max([*known, incident.step])
        reason = f"{len(known) + 1} failures in a row without a step after {newest} (no_progress={most})"
        return Verdict(Action.GIVE_UP, reason, policy=NAME)
    if not incident.exception or classify(incident) in NO_BUG:
        return None
    equal = 1 + _equal_in_a_row(before, incident)
    if incident.step is None and equal >= most:
        reason = f"{incident.exception} on rank {incident.rank} {equal} times in a row (no_progress={most})"
        return Verdict(Action.GIVE_UP, reason, policy=NAME)
    return None


def _equal_in_a_row(before: list[Failure], incident: Incident) -> int:
    count, later = 0, 0.0
    for failure in reversed(before):
        if not is_equal(failure, incident) or failure.seconds_ago - later > GAP_SECONDS:
            break
        count, later = count + 1, failure.seconds_ago
    return count
