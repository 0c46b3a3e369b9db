"""A restart budget: so many restarts within a sliding window, or as many as progress gives back."""

from __future__ import annotations

import re
from dataclasses import dataclass

from elastic_core.incidents import Action, FailureClass, History, Incident, Verdict
from elastic_core.plugins import is_worth_requeueing
from elastic_core.protocol import MAX_FAILURES
from elastic_policies.durations import format_duration, parse_count, parse_duration, split_value
from elastic_policies.past import is_preemption, newer_steps, since_checkpoint, since_progress, within

NAME = "budget"
FORM = "N/DURATION, N/progress, N/checkpoint or N/Msteps, such as 10/1h or 3/1000steps"
MAX_WINDOW_SECONDS = 30 * 86_400.0
MAX_STEPS = 10**12
PROGRESS, CHECKPOINT = "progress", "checkpoint"
_STEPS = re.compile(r"(\d+) ?steps?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A budget of restarts. Exactly one of the other fields is set."""

    restarts: int
    window: float | None = None  # seconds within which restarts are counted
    since: str | None = None
    """The progress that gives all restarts back: ``progress`` (a newer step or checkpoint) or ``checkpoint``."""
    steps: int | None = None  # so many newer steps give one restart back

    def __str__(self) -> str:
        if self.steps is not None:
            return f"{self.restarts}/{self.steps}steps"
        return f"{self.restarts}/{self.since if self.window is None else format_duration(self.window)}"


def parse(text: str) -> Budget:
    """Return the budget that ``10/1h`` or ``3/progress`` means; raise Wrong for another text."""
    count, rest = split_value(text, "/", FORM)
    restarts = parse_count(count, least=0, most=MAX_FAILURES)
    if (rest := rest.strip()) in (PROGRESS, CHECKPOINT):
        return Budget(restarts=restarts, since=rest)
    if (steps := _STEPS.fullmatch(rest)) is not None:
        return Budget(restarts=restarts, steps=parse_count(steps[1], least=1, most=MAX_STEPS))
    return Budget(restarts=restarts, window=parse_duration(rest, most=MAX_WINDOW_SECONDS))


def judge(incident: Incident, history: History, budget: Budget) -> Verdict | None:
    """Give up if the budget is spent. Preemptions are free, and spend nothing of it."""
    if incident.failure_class is FailureClass.PREEMPTION:
        return None
    spent, span = _count_spent(incident, history, budget)
    if spent >= budget.restarts:
        reason = f"all restarts of budget={budget} are spent: {spent} {span}"
        return Verdict(Action.GIVE_UP, reason, requeue=is_worth_requeueing(incident, history.failures), policy=NAME)
    return Verdict(Action.RESTART, f"restart {spent + 1} of budget={budget}", policy=NAME)


def _count_spent(incident: Incident, history: History, budget: Budget) -> tuple[int, str]:
    """Return how many restarts are spent, and in words since when."""
    if budget.steps is not None:
        spent = _count_not_given_back(incident, history, budget.steps)
        return spent, f"and not given back by {budget.steps} steps each"
    if budget.since == PROGRESS:
        counted, span = since_progress(history, incident), "since a newer step or checkpoint"
    elif budget.since == CHECKPOINT:
        counted, span = since_checkpoint(history), "since a newer checkpoint"
    else:
        counted, span = within(history, budget.window or 0.0), f"within {format_duration(budget.window or 0.0)}"
    return sum(not is_preemption(failure) for failure in counted), span


def _count_not_given_back(incident: Incident, history: History, steps: int) -> int:
    """Return how many restarts are spent if each ``steps`` newer steps give one back.

    Steps count on over failures: three rounds of 400 steps give one of ``1000 steps`` back. What is left over when
    nothing is spent is not saved up.
    """
    added = newer_steps(history, incident)
    spent = rest = 0
    for gained, failure in zip(added, [*history.failures, None], strict=True):
        given_back, rest = divmod(rest + gained, steps)
        if given_back >= spent:
            spent = rest = 0
        else:
            spent -= given_back
        spent += failure is not None and not is_preemption(failure)
    return spent
