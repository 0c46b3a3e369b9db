"""What the agent's loop tells itself, through its own inbox: timers that ring, and answers from its threads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tick:
    """The loop is alive; comes once a heartbeat."""


@dataclass(frozen=True, slots=True)
class AliveFor:
    """A round may have been running for ``SILENT_PROGRESS`` seconds."""

    round: int


@dataclass(frozen=True, slots=True)
class Depart:
    """It is time to go, after a signal, or because somebody wants it."""

    signum: int
    finished: bool = False
    """Other nodes' workers have all exited with 0 (rule L7)."""
    final: bool = False
    """The grace to do the same, or to stop together with all others, is over."""
    why: str = ""
    """Who wants it; '' for the signal."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """The warden should have killed everything by now."""


@dataclass(frozen=True, slots=True)
class Crashed:
    """A thread of the session, or of a policy, met a defect."""

    error: BaseException
