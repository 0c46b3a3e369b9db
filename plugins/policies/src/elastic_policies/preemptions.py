"""A budget for preemptions: a job that is taken from its nodes again and again is better queued anew."""

from __future__ import annotations

from elastic_core.incidents import Action, FailureClass, History, Incident, Verdict
from elastic_core.protocol import MAX_FAILURES
from elastic_policies.budget import MAX_WINDOW_SECONDS, Budget
from elastic_policies.durations import format_duration, parse_count, parse_duration, split_value
from elastic_policies.past import is_preemption, within

NAME = "preemptions"
FORM = "N/DURATION, such as 20/1h: the job ends at the preemption after the N-th within the duration"


def parse(text: str) -> Budget:
    """Return the budget that ``20/1h`` means; raise Wrong for another text."""
    count, window = split_value(text, "/", FORM)
    restarts = parse_count(count, least=0, most=MAX_FAILURES)
    return Budget(restarts=restarts, window=parse_duration(window, most=MAX_WINDOW_SECONDS))


def judge(incident: Incident, history: History, preemptions: Budget) -> Verdict | None:
    """Give up, and ask the scheduler to run the job again, if there were too many preemptions; abstain otherwise."""
    if incident.failure_class is not FailureClass.PREEMPTION:
        return None
    window = preemptions.window or 0.0
    before = sum(map(is_preemption, within(history, window)))
    if before < preemptions.restarts:
        reason = f"preemption {before + 1} of preemptions={preemptions}"
        return Verdict(Action.RESTART, reason, policy=NAME)
    reason = f"workers were preempted {before + 1} times within {format_duration(window)} (preemptions={preemptions})"
    return Verdict(Action.GIVE_UP, reason, requeue=True, policy=NAME)
