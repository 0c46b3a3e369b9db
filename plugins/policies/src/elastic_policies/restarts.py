"""Policies of how often, and how soon, a job is restarted: budgets of restarts and of preemptions, and a back-off."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from elastic_core.config.parse import Wrong
from elastic_core.incidents import MAX_DELAY_SECONDS, Action, FailureClass, History, Incident, Verdict
from elastic_core.plugins import is_worth_requeueing
from elastic_core.protocol import MAX_FAILURES
from elastic_policies.durations import format_duration, parse_count, parse_duration, split_value
from elastic_policies.past import is_preemption, newer_steps, since_checkpoint, since_progress, within

MAX_WINDOW_SECONDS = 30 * 86_400.0
MAX_STEPS = 10**12
PROGRESS, CHECKPOINT = "progress", "checkpoint"
_STEPS = re.compile(r"(\d+) ?steps?")
CALM_FACTOR, CALM_SECONDS = 10.0, 600.0
"""A time without a failure of so many times the longest delay, so many seconds at least, ends the back-off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """So many restarts within a sliding window, or as many as progress gives back. One of the other fields is set."""

    NAME: ClassVar = "budget"
    FORM: ClassVar = "N/DURATION, N/progress, N/checkpoint or N/Msteps, such as 10/1h or 3/1000steps"
    restarts: int
    window: float | None = None  # seconds within which restarts are counted
    since: str | None = None
    """The progress that gives all restarts back: ``progress`` (a newer step or checkpoint) or ``checkpoint``."""
    steps: int | None = None  # so many newer steps give one restart back

    def __str__(self) -> str:
        if self.steps is not None:
            return f"{self.restarts}/{self.steps}steps"
        return f"{self.restarts}/{self.since if self.window is None else format_duration(self.window)}"

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Return the budget that ``10/1h`` or ``3/progress`` means; raise Wrong for another text."""
        count, rest = split_value(text, "/", cls.FORM)
        restarts = parse_count(count, least=0, most=MAX_FAILURES)
        if (rest := rest.strip()) in (PROGRESS, CHECKPOINT):
            return cls(restarts=restarts, since=rest)
        if (steps := _STEPS.fullmatch(rest)) is not None:
            return cls(restarts=restarts, steps=parse_count(steps[1], least=1, most=MAX_STEPS))
        return cls(restarts=restarts, window=parse_duration(rest, most=MAX_WINDOW_SECONDS))

    def judge(self, incident: Incident, history: History) -> Verdict | None:
        """Give up if the budget is spent. Preemptions are free, and spend nothing of it."""
        if incident.failure_class is FailureClass.PREEMPTION:
            return None
        spent, span = self._count_spent(incident, history)
        if spent < self.restarts:
            return Verdict(Action.RESTART, f"restart {spent + 1} of budget={self}")
        reason = f"all restarts of budget={self} are spent: {spent} {span}"
        return Verdict(Action.GIVE_UP, reason, requeue=is_worth_requeueing(incident, history.failures))

    def _count_spent(self, incident: Incident, history: History) -> tuple[int, str]:
        """Return how many restarts are spent, and in words since when."""
        if self.steps is not None:
            spent = _count_not_given_back(incident, history, self.steps)
            return spent, f"and not given back by {self.steps} steps each"
        if self.since == PROGRESS:
            counted, span = since_progress(history, incident), "since a newer step or checkpoint"
        elif self.since == CHECKPOINT:
            counted, span = since_checkpoint(history), "since a newer checkpoint"
        else:
            counted, span = within(history, self.window or 0.0), f"within {format_duration(self.window or 0.0)}"
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


@dataclass(frozen=True, slots=True)
class Preemptions:
    """A budget for preemptions: a job that is taken from its nodes again and again is better queued anew."""

    NAME: ClassVar = "preemptions"
    FORM: ClassVar = "N/DURATION, such as 20/1h: the job ends at the preemption after the N-th within the duration"
    most: int
    window: float  # seconds

    @classmethod
    def parse(cls, text: str) -> Preemptions:
        """Return the budget that ``20/1h`` means; raise Wrong for another text."""
        count, window = split_value(text, "/", cls.FORM)
        return cls(parse_count(count, least=0, most=MAX_FAILURES), parse_duration(window, most=MAX_WINDOW_SECONDS))

    def judge(self, incident: Incident, history: History) -> Verdict | None:
        """Give up, and ask the scheduler to run the job again, if there were too many; abstain for other failures."""
        if incident.failure_class is not FailureClass.PREEMPTION:
            return None
        before, span = sum(map(is_preemption, within(history, self.window))), format_duration(self.window)
        given = f"preemptions={self.most}/{span}"
        if before < self.most:
            return Verdict(Action.RESTART, f"preemption {before + 1} of {given}")
        reason = f"workers were preempted {before + 1} times within {span} ({given})"
        return Verdict(Action.GIVE_UP, reason, requeue=True)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Each restart without progress waits twice as long as the one before. Delays are in seconds."""

    NAME: ClassVar = "backoff"
    FORM: ClassVar = "DURATION..DURATION, such as 1s..60s"
    first: float
    longest: float

    @classmethod
    def parse(cls, text: str) -> Backoff:
        """Return the back-off that ``1s..60s`` means; raise Wrong for another text."""
        first, longest = split_value(text, "..", cls.FORM)
        found = cls(*(parse_duration(part, most=MAX_DELAY_SECONDS) for part in (first, longest)))
        if found.first > found.longest:
            raise Wrong(f"begins with a longer delay, {first.strip()}, than it ends with")
        return found

    def judge(self, incident: Incident, history: History) -> Verdict | None:
        """Delay the restart after the second failure in a row by the first delay, after the third by twice as much, ….

        The first restart is at once. Failures are in a row if no newer step or checkpoint was reached in between,
        nor a long time passed.
        """
        calm, row, later = max(CALM_SECONDS, CALM_FACTOR * self.longest), 0, 0.0
        for failure in reversed(since_progress(history, incident)):
            if failure.seconds_ago - later > calm:
                break
            row, later = row + 1, failure.seconds_ago
        if not row:
            return None
        delay = min(self.longest, self.first * 2 ** (row - 1))
        given = f"{format_duration(self.first)}..{format_duration(self.longest)}"
        reason = f"failure {row + 1} in a row, so backoff={given} waits {format_duration(delay)}"
        return Verdict(Action.RESTART, reason, delay=delay)
