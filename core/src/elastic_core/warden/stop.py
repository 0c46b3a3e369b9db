"""A stop under way, as the warden remembers it: until when it asks, whom it has killed, who does not die.

Imported by the warden process, so by few and cheap means.
"""

from __future__ import annotations

import math
import signal

from elastic_core.warden.linux import Process

STUCK_AFTER = 15.0
"""Seconds after SIGKILL from which a process that is still there is reported (rule L3)."""


TERM_SHARE, TERM_MOST = 0.2, 5.0
"""The last part of a grace, and at most so many seconds, in which SIGTERM follows another signal."""


class Ending:
    """A stop under way.

    Attributes:
        signum: What the workers are asked with: at first the signal that was asked for, at last SIGTERM.
        deadline: When asking ends and killing begins.
        serial: The agent's number of the stop to answer, if it asked for one.
        fenced: The dead-man's switch went off.
        sigterm_at: When SIGTERM follows a signal that is another one.
        killed: What was sent SIGKILL and is still there, with the time of that; None until killing has begun.
        reported: Those of them that were reported as stuck.
    """

    __slots__ = ("deadline", "fenced", "killed", "reported", "serial", "signum", "sigterm_at")

    def __init__(self, signum: int, grace: float, now: float, fenced: bool = False) -> None:
        self.signum = signum
        self.deadline = now + grace
        self.sigterm_at = self.deadline - min(TERM_SHARE * grace, TERM_MOST)
        self.serial: int | None = None
        self.fenced = fenced
        self.killed: dict[Process, float] | None = None
        self.reported: set[Process] = set()

    def due(self) -> float:
        """When there is something to do that no event announces."""
        if self.killed is None:
            return self.sigterm_at if self.sigterm_follows() else self.deadline
        waiting = [since for process, since in self.killed.items() if process not in self.reported]
        return min(waiting, default=math.inf) + STUCK_AFTER

    def sigterm_follows(self) -> bool:
        """Whether SIGTERM is still to be sent, after another signal; not if the deadline has come nearer than that."""
        return self.killed is None and self.signum != signal.SIGTERM and self.sigterm_at < self.deadline

    def overdue(self, now: float) -> list[Process]:
        """Processes to report as stuck: each once."""
        killed = self.killed or {}
        late = [p for p, since in killed.items() if now >= since + STUCK_AFTER and p not in self.reported]
        self.reported.update(late)
        return late
