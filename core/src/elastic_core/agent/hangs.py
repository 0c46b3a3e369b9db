"""Notices that a worker makes no progress (rule L13): from its steps, its output and its use of a CPU.

Everything here is read from outside, so it works for any program: an agent looks at its workers once in a fiftieth of
the window, at a cost of some 20 µs each. A suspicion ends nothing. It has the leader ask all nodes where their ranks
are, and what they answer shows whether anything moves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from elastic_core.agent.worker import Worker
from elastic_core.warden.linux import cpu_seconds

LEAST_WINDOW_SECONDS = 300.0  # without progress, where the user sets no window
STEPS_PER_WINDOW = 10.0  # a window is at least this many times the longest step
LOOKS_PER_WINDOW = 50
LOOK_SECONDS = 0.2, 5.0  # the least and the greatest interval between two looks
CPU_SHARE = 0.01  # of a core: a process that uses less waits
CPU_TICK_SECONDS = 0.015  # more than one tick of the kernel's clock, its unit


@dataclass(frozen=True, slots=True)
class HangCheck:
    """It is time to look whether the workers of a round make progress."""

    round: int


class Stepped(Protocol):
    """How far a worker has come."""

    @property
    def step(self) -> int | None:
        """Its newest step; None if none is known."""


class Steps(Protocol):
    """Knows the steps of the local ranks of the current round."""

    def newest(self) -> Mapping[int, tuple[Stepped, float]]:
        """Return how far each rank has come that has moved, and how many seconds ago it last moved."""

    def longest_interval(self) -> float | None:
        """Return the longest time in seconds between two steps of a worker that followed each other, in this run."""


@dataclass(frozen=True, slots=True)
class Signs:
    """When a worker last showed that it makes progress; instants of the monotonic clock."""

    stepped_at: float | None  # when its step last changed; None if no step is known
    printed_at: float  # when it last wrote anything; its start before that
    computed_at: float  # when it was last seen to use a CPU; its start before that


def makes_progress(signs: Signs, now: float, window: float) -> bool:
    """Whether a worker has shown progress within the window.

    A worker whose steps are known must come to a new one, or print. Any other must print, or use a CPU.
    """
    other = signs.computed_at if signs.stepped_at is None else signs.stepped_at
    return now - max(signs.printed_at, other) < window


def window_seconds(given: float | None, longest_step: float | None) -> float:
    """Return the seconds without progress after which a worker is suspected."""
    if given is not None:
        return given
    return max(LEAST_WINDOW_SECONDS, STEPS_PER_WINDOW * (longest_step or 0.0))


def look_interval(window: float) -> float:
    """Return the seconds between two looks."""
    least, most = LOOK_SECONDS
    return min(most, max(least, window / LOOKS_PER_WINDOW))


def uses_cpu(seconds: float, elapsed: float) -> bool:
    """Whether a process that has used a CPU for so many of the ``elapsed`` seconds does more than wait."""
    return seconds > max(CPU_SHARE * elapsed, CPU_TICK_SECONDS)


@dataclass(slots=True)
class _Seen:
    """What was seen of one worker at the last look."""

    pid: int
    tails: tuple[bytes, ...]
    printed_at: float
    cpu: float
    computed_at: float


@dataclass(slots=True)
class ReportedSteps:
    """The steps that workers report themselves (``should_checkpoint``, ``TrainState``)."""

    now: Callable[[], float] = time.monotonic
    _newest: dict[int, tuple[ReportedStep, float]] = field(default_factory=dict)
    _longest: float | None = None

    def begin(self) -> None:
        """Begin a round: no step is known."""
        self._newest.clear()

    def note(self, rank: int, step: int) -> None:
        """Note the step that a rank can reach without another report."""
        now, before = self.now(), self._newest.get(rank)
        if before is None or before[0].step != step:
            if before is not None:
                self._longest = max(self._longest or 0.0, now - before[1])
            self._newest[rank] = ReportedStep(step), now

    def newest(self) -> Mapping[int, tuple[Stepped, float]]:
        """See :class:`Steps`."""
        now = self.now()
        return {rank: (reported, now - at) for rank, (reported, at) in self._newest.items()}

    def longest_interval(self) -> float | None:
        """See :class:`Steps`."""
        return self._longest


@dataclass(frozen=True, slots=True)
class ReportedStep:
    """A step that a worker has reported."""

    step: int


@dataclass(slots=True)
class HangWatch:
    """Looks at the workers of a round, again and again. For the agent's loop.

    Args:
        given: The user's window in seconds; None for one that follows from the longest step.
        steps: Knows how far they have come.
        cpu: Returns the CPU seconds of a process; 0 of one that is gone.
        now: Seconds, monotonic.
    """

    given: float | None = None
    steps: Steps = field(default_factory=ReportedSteps)
    cpu: Callable[[int], float] = cpu_seconds
    now: Callable[[], float] = time.monotonic
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _looked_at: float = 0.0

    @property
    def window(self) -> float:
        """The seconds without progress after which a worker is suspected."""
        return window_seconds(self.given, self.steps.longest_interval())

    def begin(self) -> None:
        """Begin a round."""
        self._seen.clear()

    def look(self, workers: Iterable[Worker]) -> float:
        """Return the window if one of these workers, which live, has shown no progress for as long; else 0."""
        now, window, newest = self.now(), self.window, self.steps.newest()
        elapsed, self._looked_at = now - self._looked_at, now
        still = [not makes_progress(self._signs(worker, now, elapsed, newest), now, window) for worker in workers]
        return window if any(still) else 0.0

    def _signs(self, worker: Worker, now: float, elapsed: float, newest: Mapping[int, tuple[Stepped, float]]) -> Signs:
        rank, pid = worker.assignment.rank, worker.pid or 0
        tails, used = tuple(pump.tail for pump in worker.streams.pumps.values()), self.cpu(pid)
        seen = self._seen.get(rank)
        if seen is None or seen.pid != pid:
            seen = self._seen[rank] = _Seen(pid, tails, now, used, now)
        if any(one is not other for one, other in zip(tails, seen.tails, strict=True)):  # replaced, never changed
            seen.printed_at = now
        if uses_cpu(used - seen.cpu, elapsed):
            seen.computed_at = now
        seen.tails, seen.cpu = tails, used
        reached = newest.get(rank)
        stepped_at = None if reached is None or reached[0].step is None else now - reached[1]
        return Signs(stepped_at, seen.printed_at, seen.computed_at)
