"""What the leader can decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from elastic_core.incidents import Incident
from elastic_core.protocol.ledger import Body, Counters


@dataclass(frozen=True, slots=True)
class Append:
    """Append this to the ledger, with these counters."""

    body: Body
    counters: Counters


@dataclass(frozen=True, slots=True)
class AskPolicies:
    """Ask the failure policies about this incident, and call again with their verdict."""

    incident: Incident


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Nothing to do before this instant (or before something changes); None: until something changes."""

    at: float | None
    waiting: str = ""
    """For people: whom the job waits for, when it cannot go on without."""
    silent: tuple[str, ...] = ()
    """Nodes that may still train, and for whose fence the job waits: somebody may know that they are gone for good."""


Decision: TypeAlias = "Append | AskPolicies | LookAgain"
