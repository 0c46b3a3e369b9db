"""Quarantine: a host whose hardware fails again and again is left out for a time."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_core.incidents import MAX_EXCLUSION_SECONDS, Action, History, Incident, Verdict
from elastic_core.protocol import MAX_FAILURES, list_names
from elastic_policies.durations import format_duration, parse_count, parse_duration, split_value
from elastic_policies.past import failed_alike, is_same_host, within

NAME = "quarantine"
FORM = "N/DURATION:DURATION, such as 3/1h:30m"


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A host with so many failures within ``window`` seconds is left out for ``cool_down`` seconds."""

    failures: int
    window: float
    cool_down: float

    def __str__(self) -> str:
        return f"{self.failures}/{format_duration(self.window)}:{format_duration(self.cool_down)}"


def parse(text: str) -> Quarantine:
    """Return the quarantine that ``3/1h:30m`` means; raise Wrong for another text."""
    count, durations = split_value(text, "/", FORM)
    spans = (parse_duration(part, most=MAX_EXCLUSION_SECONDS) for part in split_value(durations, ":", FORM))
    return Quarantine(parse_count(count, least=1, most=MAX_FAILURES), *spans)


def judge(incident: Incident, history: History, quarantine: Quarantine) -> Verdict | None:
    """Leave out the host of the failure if it was the first cause so many times within the window.

    Only failures count that can be the host's fault. One that has come on another host too follows the job, and not the
    host, so no host is left out for it. A host that stays, because the others are too few, is not judged anew by every
    failure, but by every ``quarantine.failures``-th: meanwhile other policies decide.
    """
    if not incident.explanation.hosts_fault:
        return None
    recent = within(history, quarantine.window)
    count = 1 + sum(
        is_same_host(failure, incident) and (failed_alike(failure, incident) or failure.hosts_fault)
        for failure in recent
    )
    if count % quarantine.failures:
        return None
    span = format_duration(quarantine.window)
    others = {one.host for one in recent if failed_alike(one, incident) and not is_same_host(one, incident)}
    if others:
        reason = f"{incident.host} is not left out: {list_names(sorted(others))} failed alike within {span}"
        return Verdict(Action.RESTART, f"{reason} (quarantine={quarantine})", policy=NAME)
    reason = f"{incident.host} failed first {count} times within {span} (quarantine={quarantine})"
    return Verdict(Action.EXCLUDE_HOST, reason, exclude_for=quarantine.cool_down, policy=NAME)
