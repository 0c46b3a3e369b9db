"""Questions of the policies about the failures that the ledger remembers."""

from __future__ import annotations

from elastic_core.incidents import SPENDS_A_RESTART, Failure, FailureClass, History, Incident
from elastic_core.protocol import MAX_FAILURES, as_record

__all__ = [
    "MAX_FAILURES",
    "failed_alike",
    "is_failure",
    "is_preemption",
    "is_same_host",
    "newer_steps",
    "since_checkpoint",
    "since_progress",
    "within",
]


def is_failure(incident: Incident) -> bool:
    """Return True if workers failed; the protocol handles all other incidents without a restart being spent."""
    return incident.kind in SPENDS_A_RESTART


def failed_alike(failure: Failure, incident: Incident) -> bool:
    """Return True if the exception, its place and its message without numbers are the same, on whatever rank."""
    return failure.signature == as_record(incident).signature


def is_same_host(failure: Failure, incident: Incident) -> bool:
    """Return True if the hosts are the same, by name."""
    return failure.host == as_record(incident).host


def within(history: History, seconds: float) -> list[Failure]:
    """Return the failures of the last so many seconds, oldest first."""
    return [failure for failure in history.failures if failure.seconds_ago <= seconds]


def is_preemption(failure: Failure) -> bool:
    """Return True if the scheduler ended the worker, which no budget counts but that of preemptions."""
    return failure.failure_class is FailureClass.PREEMPTION


def since_progress(history: History, incident: Incident) -> list[Failure]:
    """Return the failures since a round last made progress that no round before had made, oldest first.

    Progress is a newer step or a newer checkpoint. Empty if the round that failed now has made some. A failure whose
    step is not known shows no newer step.
    """
    newest, start = None, 0
    for place, (step, new_checkpoint) in enumerate(_progress(history, incident)):
        if new_checkpoint or (step is not None and newest is not None and step > newest):
            start = place
        if step is not None:
            newest = step if newest is None else max(newest, step)
    return list(history.failures[start:])


def since_checkpoint(history: History) -> list[Failure]:
    """Return the failures since a round last saved a newer checkpoint, oldest first."""
    if history.new_checkpoint:
        return []
    places = [place for place, failure in enumerate(history.failures) if failure.new_checkpoint]
    return list(history.failures[max(places, default=0) :])


def newer_steps(history: History, incident: Incident) -> list[int]:
    """Return for each failure, oldest first and the incident last, how many steps its round has added.

    These are the steps after the newest that a failure before it had reached; 0 for the first one, and where the step
    is not known.
    """
    newest, added = None, []
    for step, _ in _progress(history, incident):
        added.append(0 if step is None or newest is None else max(0, step - newest))
        if step is not None:
            newest = step if newest is None else max(newest, step)
    return added


def _progress(history: History, incident: Incident) -> list[tuple[int | None, bool]]:
    before = [(failure.step, failure.new_checkpoint) for failure in history.failures]
    return [*before, (as_record(incident).step, history.new_checkpoint)]
