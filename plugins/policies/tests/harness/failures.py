"""Short constructors of failures for these tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elastic_core.incidents import Failure, History, Incident, IncidentKind
from elastic_core.protocol.counters import as_record
from elastic_policies.known_failures import explain


def incident(**facts: Any) -> Incident:
    """A worker's failure with its explanation; rank 0 on host a raised a ValueError, unless ``facts`` say otherwise."""
    known: dict[str, Any] = {
        "kind": IncidentKind.WORKER_FAILED,
        "round": 1,
        "node_id": "n",
        "host": "a",
        "rank": 0,
        "exit_code": 1,
        "message": "ValueError: boom",
    }
    known |= facts
    made = Incident(**{"exception": known["message"].partition(":")[0], **known})
    return replace(made, explanation=explain(made))


def failure(ago: float = 0.0, **facts: Any) -> Failure:
    """The same, ``ago`` seconds ago, as the ledger remembers it."""
    known: dict[str, Any] = {
        "round": 1,
        "rank": 0,
        "host": "a",
        "exception": "ValueError",
        "exit_code": 1,
        "step": None,
    }
    known = {**known, **facts}
    message = f"{known['exception']}: boom" if known["exception"] else ""
    made = as_record(incident(message=message, exit_code=known["exit_code"]))
    record = {"digest": made.digest, "failure_class": made.failure_class, "hosts_fault": made.hosts_fault}
    return Failure(**{**record, **known}, seconds_ago=ago)


def killed(ago: float | None = None, number: int = 9, **facts: Any) -> Any:
    """A worker that a signal ended: the incident, or what is remembered of it."""
    if ago is None:
        return incident(exit_code=-number, message="", **facts)
    return failure(ago, exception="", exit_code=-number, **facts)


def history(
    *failures: Failure,
    restarts: int | None = None,
    max_restarts: int | None = 3,
    new_checkpoint: bool = False,
    moved: bool = False,
) -> History:
    """Return the failures that the ledger remembers, oldest first."""
    spent = len(failures) if restarts is None else restarts
    return History(
        restarts=spent,
        max_restarts=max_restarts,
        rounds_without_progress=0,
        failures=failures,
        new_checkpoint=new_checkpoint,
        moved=moved,
    )
