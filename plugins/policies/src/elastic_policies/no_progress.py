"""No progress: a bug that ends every round at the same place ends the job."""

from __future__ import annotations

from itertools import takewhile

from elastic_core.incidents import Action, Failure, History, Incident, Verdict
from elastic_core.known_failures import FailureClass, classify
from elastic_policies.durations import parse_count
from elastic_policies.past import MAX_FAILURES, class_of, is_equal, since_progress

NAME = "no_progress"
FORM = "N, such as 3: the job ends at the N-th failure in a row without a newer step or checkpoint"
GAP_SECONDS = 600.0
"""Where steps are not known: rounds that lasted longer may have trained, so their failures are not one bug's."""
STEP_GAP_SECONDS = 3600.0
"""Where steps are known. A bar that counts from 0 in each round shows no newer step, however long the round trained."""
NO_BUG = frozenset({FailureClass.INFRASTRUCTURE, FailureClass.PEER})


def parse(text: str) -> int:
    """Return the number of failures; raise Wrong for another text."""
    return parse_count(text, least=2, most=MAX_FAILURES)


def judge(incident: Incident, history: History, most: int) -> Verdict | None:
    """Give up at the ``most``-th failure in a row, at short intervals, without a newer step or with an equal exception.

    The second counts where steps are not known. A newer checkpoint is progress in both cases. Failures of the
    infrastructure, of peers, and preemptions do not count.
    """
    if not _can_be_a_bug(classify(incident), incident.exception):
        return None
    since = since_progress(history, incident)
    before = [one for one in since if _can_be_a_bug(class_of(one), one.exception)]
    known = [failure.step for failure in _in_a_row(before, STEP_GAP_SECONDS) if failure.step is not None]
    if incident.step is not None and len(known) >= most - 1:
        newest = max([*known, incident.step])
        what = f"{len(known) + 1} failures in a row without a step after {newest}"
        return Verdict(Action.GIVE_UP, f"{what} or a newer checkpoint (no_progress={most})", policy=NAME)
    if not incident.exception:
        return None
    equal = 1 + _equal_in_a_row(before, incident)
    if incident.step is None and equal >= most:
        what = f"{incident.exception} on rank {incident.rank} {equal} times in a row"
        return Verdict(Action.GIVE_UP, f"{what} without a newer checkpoint (no_progress={most})", policy=NAME)
    return None


def _can_be_a_bug(failure_class: FailureClass, exception: str) -> bool:
    """Whether a failure can be the program's. A signal without a text can: the program may need too much memory."""
    return failure_class is not FailureClass.PREEMPTION and not (exception and failure_class in NO_BUG)


def _in_a_row(before: list[Failure], gap: float) -> list[Failure]:
    """Return the newest failures that are at most ``gap`` seconds apart, the newest first."""
    found: list[Failure] = []
    for failure in reversed(before):
        if failure.seconds_ago - (found[-1].seconds_ago if found else 0.0) > gap:
            break
        found.append(failure)
    return found


def _equal_in_a_row(before: list[Failure], incident: Incident) -> int:
    return sum(1 for _ in takewhile(lambda failure: is_equal(failure, incident), _in_a_row(before, GAP_SECONDS)))
