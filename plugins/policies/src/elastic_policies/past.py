"""What the policies ask about the failures that the ledger remembers."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_core.incidents import SPENDS_A_RESTART, Failure, History, Incident, IncidentKind
from elastic_core.known_failures import FailureClass, classify
from elastic_core.protocol.limits import FAILURE_TEXT_BYTES, MAX_FAILURES, clip

__all__ = [
    "MAX_FAILURES",
    "class_of",
    "failed_alike",
    "is_equal",
    "is_failure",
    "is_same_host",
    "since_progress",
    "within",
]


def is_failure(incident: Incident) -> bool:
    """Whether workers failed; the protocol handles all other incidents without a restart being spent."""
    return incident.kind in SPENDS_A_RESTART


def class_of(failure: Failure) -> FailureClass:
    """Return the class of a past failure, of which only the exception's type and the exit code are known."""
    return classify(
        Incident(
            kind=IncidentKind.WORKER_FAILED,
            round=failure.round,
            node_id="",
            host=failure.host,
            rank=failure.rank,
            exit_code=failure.exit_code,
            message=failure.exception,
            step=failure.step,
        )
    )


def failed_alike(failure: Failure, incident: Incident) -> bool:
    """Whether the exception's type and the exit code are the same, on whatever rank."""
    exception = clip(incident.exception, FAILURE_TEXT_BYTES)  # as the ledger keeps it
    return (failure.exception, failure.exit_code) == (exception, incident.exit_code)


def is_same_host(failure: Failure, incident: Incident) -> bool:
    """Whether the hosts are the same, by name."""
    return failure.host == clip(incident.host, FAILURE_TEXT_BYTES)


def is_equal(failure: Failure, incident: Incident) -> bool:
    """Whether a worker of the same rank failed alike."""
    return failure.rank == incident.rank and failed_alike(failure, incident)


def within(history: History, seconds: float) -> list[Failure]:
    """Return the failures of the last so many seconds, oldest first."""
    return [failure for failure in history.failures if failure.seconds_ago <= seconds]


def since_progress(failures: Sequence[Failure], incident: Incident) -> list[Failure]:
    """Return the failures since a step was last reached that no round before had reached, oldest first.

    Empty if the round that failed now has reached one. A failure whose step is not known shows no progress.
    """
    newest, start = None, 0
    for place, step in enumerate([*(failure.step for failure in failures), incident.step]):
        if step is None:
            continue
        if newest is not None and step > newest:
            start = place
        newest = step if newest is None else max(newest, step)
    return list(failures[start:])
