"""A restart budget: so many failures within a sliding window, or since the last progress."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_core.config.parse import Wrong
from elastic_core.incidents import Action, History, Incident, Verdict
from elastic_core.known_failures import FailureClass, classify
from elastic_core.plugins.builtin import is_worth_requeueing
from elastic_policies.durations import format_duration, parse_count, parse_duration
from elastic_policies.past import MAX_FAILURES, class_of, since_progress, within

NAME = "budget"
FORM = "N/DURATION or N/progress, such as 10/1h"
MAX_WINDOW_SECONDS = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Budget:
    """How many restarts there are."""

    restarts: int
    window: float | None  # seconds within which they are counted; None: since the last progress

    def __str__(self) -> str:
        return f"{self.restarts}/{'progress' if self.window is None else format_duration(self.window)}"


def parse(text: str) -> Budget:
    """Return the budget that ``10/1h`` or ``3/progress`` means; raise Wrong for another text."""
    count, slash, window = text.partition("/")
    if not slash:
        raise Wrong(f"is not of the form {FORM}")
    restarts = parse_count(count, least=0, most=MAX_FAILURES)
    if window.strip() == "progress":
        return Budget(restarts, None)
    return Budget(restarts, parse_duration(window, most=MAX_WINDOW_SECONDS))


def judge(incident: Incident, history: History, budget: Budget) -> Verdict | None:
    """Give up if the budget is spent. Preemptions are free, and spend nothing of it."""
    if classify(incident) is FailureClass.PREEMPTION:
        return None
    if budget.window is None:
        counted, span = since_progress(history.failures, incident), "since a newer step was reached"
    else:
        counted, span = within(history, budget.window), f"within {format_duration(budget.window)}"
    spent = sum(class_of(failure) is not FailureClass.PREEMPTION for failure in counted)
    if spent >= budget.restarts:
        reason = f"all restarts of budget={budget} are spent: {spent} {span}"
        return Verdict(Action.GIVE_UP, reason, requeue=is_worth_requeueing(incident), policy=NAME)
    return Verdict(Action.RESTART, f"restart {spent + 1} of budget={budget}", policy=NAME)
