"""A stop in the warden: its state, and the processes that outlive the workers that started them, and get time to end.

A helper leads a session of its own, as a logger's service or a daemon does, or is in one. It gets SIGTERM once the last
worker is gone, and the rest of the stop's grace, beside the next round. A tracker removes the shared memory of dead
processes, which would be in the way of the next round's workers: the stop waits for it, for a moment, and it is not
killed before the end of the grace either.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Collection, Iterable

from elastic_core.host.processes import Process, read_proc, session_of

STUCK_AFTER_SECONDS = 15.0  # seconds after SIGKILL after which a process that still exists is reported (rule L3)
NOTICES = signal.SIGURG, signal.SIGUSR1, signal.SIGUSR2
"""Signals by which a scheduler says that it takes the node away. Workers without a handler get SIGTERM instead."""
TERM_SHARE = 0.2
TERM_MAX_SECONDS = 5.0
"""SIGTERM follows another signal in the last part of the grace: this share of it, and at most so many seconds."""
TRACKERS = "resource_tracker", "torch_shm_manager"  # in their command lines
TRACKERS_MAX_SECONDS = 0.2  # for which a stop waits for them


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
        as stuck; None before the first SIGKILL."""

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


class Helpers:
    """The helpers and trackers that may live on. Times are of the monotonic clock."""

    def __init__(self) -> None:
        self._sessions: dict[int, float] = {}  # the helpers' sessions, and when what is left of each is killed
        self._trackers: dict[int, float] = {}  # the same of a tracker
        self._wait_until = 0.0  # for trackers

    def admit(self, left: Iterable[Process], workers: Collection[int], now: float, deadline: float) -> list[Process]:
        """Give time to helpers and trackers among the processes that are left of a round; return the helpers.

        ``workers`` are those of the round, which are gone; each led a session. The helpers and trackers are killed at
        ``deadline``.
        """
        self._wait_until = now + TRACKERS_MAX_SECONDS
        others, helpers = {0, os.getsid(0), *workers}, list[Process]()
        for process in left:
            command, session = read_proc(process[0], "cmdline"), session_of(process[0])
            if any(tracker in command for tracker in TRACKERS):
                self._trackers[process[0]] = deadline
            elif session not in others:
                self._sessions[session] = deadline
                helpers.append(process)
        return helpers

    def outlives_stop(self, pid: int, now: float) -> bool:
        """Return True if no stop waits for a process."""
        return session_of(pid) in self._sessions or (pid in self._trackers and now >= self._wait_until)

    def has_time(self, pid: int) -> bool:
        """Return True if a process may live on."""
        return pid in self._trackers or session_of(pid) in self._sessions

    def next_deadline(self, now: float) -> float:
        """Return when :meth:`take_expired` or the end of the wait for trackers is due; infinity for never."""
        waits = [self._wait_until] if now < self._wait_until and self._trackers else []
        return min((*waits, *self._sessions.values(), *self._trackers.values()), default=math.inf)

    def take_expired(self, now: float) -> set[int]:
        """Forget the helpers and trackers whose time is over; return the sessions of the former, and the latter."""
        expired = {number for one in (self._sessions, self._trackers) for number, at in one.items() if now >= at}
        for number in expired:
            self._sessions.pop(number, None)
            self._trackers.pop(number, None)
        return expired

    def clear(self) -> None:
        """Forget all: no process may live on."""
        self._sessions.clear()
        self._trackers.clear()
