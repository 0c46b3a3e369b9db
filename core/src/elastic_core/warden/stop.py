"""The state of a stop in the warden: its signal and deadline, the processes that were killed, and those that stay."""

from __future__ import annotations

import math
import signal

from elastic_core.warden.linux import Process

STUCK_AFTER_SECONDS = 15.0  # seconds after SIGKILL after which a process that still exists is reported (rule L3)
NOTICES = signal.SIGURG, signal.SIGUSR1, signal.SIGUSR2
"""Signals by which a scheduler says that it takes the node away. Workers without a handler get SIGTERM instead."""
TERM_SHARE = 0.2
TERM_MAX_SECONDS = 5.0
"""SIGTERM follows another signal in the last part of the grace: this share of it, and at most so many seconds."""


class StopInProgress:
    """A stop in progress. Times are of the monotonic clock."""

    def __init__(self, signum: int, grace: float, now: float, fenced: bool = False) -> None:
        self.signum = signum  # for the workers: at first the one that the stop began with, in the end SIGTERM
        self.deadline = now + grace  # when the remaining processes are killed
        self.sigterm_at = self.deadline - min(TERM_SHARE * grace, TERM_MAX_SECONDS)
        self.serial: int | None = None  # the agent's number of the stop, if the agent requested it
        self.fenced = fenced  # whether the dead-man's switch went off
        self.patient = False  # whether all processes have the grace, also once the workers are gone
        self.killed: dict[Process, float] | None = None
        """The processes that were sent SIGKILL and still exist, with the time, or infinity for those that were reported
        as stuck; None before the first SIGKILL.
        """

    def next_deadline(self) -> float:
        """Return when the stop needs its next step, if no event comes before."""
        if self.killed is None:
            return self.sigterm_at if self.is_sigterm_due() else self.deadline
        return min(self.killed.values(), default=math.inf) + STUCK_AFTER_SECONDS

    def is_sigterm_due(self) -> bool:
        """Return whether SIGTERM is to follow another signal; not if the deadline has moved before it."""
        return self.killed is None and self.signum != signal.SIGTERM and self.sigterm_at < self.deadline

    def take_stuck(self, now: float) -> list[Process]:
        """Return the processes to report as stuck, each once."""
        killed = self.killed or {}
        late = [process for process, since in killed.items() if now >= since + STUCK_AFTER_SECONDS]
        killed.update(dict.fromkeys(late, math.inf))
        return late
