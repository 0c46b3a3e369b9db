"""Exponential back-off: each restart without progress waits twice as long as the one before."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_core.config.parse import Wrong
from elastic_core.incidents import MAX_DELAY_SECONDS, Action, History, Incident, Verdict
from elastic_policies.durations import format_duration, parse_duration, split_value
from elastic_policies.past import since_progress

NAME = "backoff"
FORM = "DURATION..DURATION, such as 1s..60s"
CALM_FACTOR = 10.0
"""A time without a failure of so many times the longest delay, 10 min at least, ends the back-off."""
CALM_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds."""

    first: float
    longest: float

    def __str__(self) -> str:
        return f"{format_duration(self.first)}..{format_duration(self.longest)}"


def parse(text: str) -> Backoff:
    """Return the back-off that ``1s..60s`` means; raise Wrong for another text."""
    first, longest = split_value(text, "..", FORM)
    found = Backoff(*(parse_duration(part, most=MAX_DELAY_SECONDS) for part in (first, longest)))
    if found.first > found.longest:
        raise Wrong(f"begins with a longer delay, {first.strip()}, than it ends with")
    return found


def judge(incident: Incident, history: History, backoff: Backoff) -> Verdict | None:
    """Delay the restart after the second failure in a row by the first delay, after the third by twice as much, ….

    The first restart is at once. Failures are in a row if no newer step or checkpoint was reached in between,
    nor a long time passed.
    """
    calm, row = max(CALM_SECONDS, CALM_FACTOR * backoff.longest), 0
    later = 0.0
    for failure in reversed(since_progress(history, incident)):
        if failure.seconds_ago - later > calm:
            break
        row, later = row + 1, failure.seconds_ago
    if not row:
        return None
    delay = min(backoff.longest, backoff.first * 2 ** (row - 1))
    reason = f"failure {row + 1} in a row, so backoff={backoff} waits {format_duration(delay)}"
    return Verdict(Action.RESTART, reason, delay=delay, policy=NAME)
