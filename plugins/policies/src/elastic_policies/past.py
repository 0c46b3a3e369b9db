"""Questions of the policies about the failures that the ledger remembers."""

from __future__ import annotations

from collections.abc import Iterable

from elastic_core.incidents import Failure, FailureClass, History, Incident
from elastic_core.protocol import as_record


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
    return _since(history, map(any, zip(newer_steps(history, incident), _saved(history), strict=True)))


def since_checkpoint(history: History) -> list[Failure]:
    """Return the failures since a round last saved a newer checkpoint, oldest first."""
    return _since(history, _saved(history))


def newer_steps(history: History, incident: Incident) -> list[int]:
    """Return for each failure, oldest first and the incident last, how many steps its round has added.

    These are the steps after the newest that a failure before it had reached; 0 for the first one, and where the step
    is not known.
    """
    newest, added = None, []
    for step in [*(failure.step for failure in history.failures), as_record(incident).step]:
        added.append(0 if step is None or newest is None else max(0, step - newest))
        if step is not None:
            newest = step if newest is None else max(newest, step)
    return added


def _saved(history: History) -> list[bool]:
    """Return for each failure, the incident last, whether its round saved a newer checkpoint."""
    return [*(failure.new_checkpoint for failure in history.failures), history.new_checkpoint]


def _since(history: History, progressed: Iterable[bool]) -> list[Failure]:
    """Return the failures from the last round on that progressed, of which the incident's is the last."""
    return list(history.failures[max((place for place, has in enumerate(progressed) if has), default=0) :])
