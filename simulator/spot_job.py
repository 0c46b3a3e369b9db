"""A job on a cluster of spot instances, in virtual time: its useful work, by the time of resizes.

The nodes of a trace come and go. A small model of a data-parallel job trains on them: it saves a checkpoint every so
many seconds of training, takes no notices, and repeats all work since its last checkpoint after each loss and each
resize. The score is the work that is not repeated, in node-seconds.

The round of a lost node restarts anyway, and takes in the waiting nodes. Strategies differ only in the time at which a
live round is resized.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from elastic_core.protocol.entries import Counters, HostLosses
from elastic_core.protocol.leader import RESIZE_PAUSE_FACTOR, RESIZE_PAUSE_SECONDS
from elastic_core.protocol.planned_stop import SETTLE_SECONDS, ResizeCase, restarts_often, seconds_until_resize

TRACES = Path(__file__).parents[1] / "tests" / "data" / "traces"
RESIZE_WAIT = 60.0
RESTART_SECONDS = 30.0  # how long workers take until they train again: imports, communicators, a checkpoint
FOUND_AFTER = 6.0  # seconds until a lost node is found (``lost_after``)


@dataclass(frozen=True)
class Change:
    """Nodes that come and go at one instant of a trace, in seconds."""

    at: float
    added: tuple[str, ...]
    removed: tuple[str, ...]


def load(name: str) -> list[Change]:
    """Return the changes of a trace, in order."""
    with (TRACES / f"{name}.csv").open() as file:
        rows = [(int(at) / 1000, kind, node) for at, kind, node in csv.reader(file)]
    changes = []
    for at, group in groupby(sorted(rows), key=lambda row: row[0]):
        found = list(group)
        added = tuple(node for _, kind, node in found if kind == "add")
        changes.append(Change(at, added, tuple(node for _, kind, node in found if kind == "remove")))
    return changes


def node_seconds(trace: list[Change]) -> float:
    """Return the total time for which the nodes of a trace are present."""
    came: dict[str, float] = {}
    total = 0.0
    for change in trace:
        came.update(dict.fromkeys(change.added, change.at))
        total += sum(change.at - came.pop(node) for node in change.removed)
    return total + sum(trace[-1].at - at for at in came.values())


# Strategies ----------------------------------------------------------------------------------------------------------

Strategy = Callable[[ResizeCase], float]
"""Returns the seconds by which a resize is put off; 0 to resize now."""


def at_once(_case: ResizeCase) -> float:
    """Resize as soon as L4 allows, as for workers that take notices."""
    return 0.0


def wait_a_minute(case: ResizeCase) -> float:
    """Resize a minute after the first newcomer's arrival."""
    return max(0.0, RESIZE_WAIT - case.waited)


def unknown(case: ResizeCase) -> float:
    """Return the delay of rule L13 for a script whose checkpoints are unknown."""
    return seconds_until_resize(replace(case, at_stake=None))


def rule(case: ResizeCase) -> float:
    """Return the delay of rule L13 for a script whose checkpoints are known."""
    return seconds_until_resize(case)


# The job -------------------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """The model of a job, on the nodes of a trace.

    Args:
        strategy: Decides when a live round is resized.
        interval: Seconds of training between two checkpoints.
        stop: Seconds to stop the workers and to decide on the next round.
        start: Seconds from then until the workers train again.
    """

    strategy: Strategy
    interval: float
    stop: float = 2.0
    start: float = RESTART_SECONDS
    now: float = 0.0
    members: set[str] = field(default_factory=set)
    waiting: dict[str, float] = field(default_factory=dict)
    """The waiting nodes, and the time of their arrival."""
    round_at: float = 0.0
    saved_at: float = 0.0  # when the newest checkpoint was saved, or the training of this round began
    resized_at: float = -math.inf
    losses: dict[str, HostLosses] = field(default_factory=dict)  # by node
    useful: float = 0.0  # node-seconds
    lost: float = 0.0  # node-seconds of work that was repeated
    resizes: int = 0
    _look_at: float = math.inf

    def play(self, trace: list[Change]) -> Job:
        """Play a trace from its first change to its last; return the job."""
        opened_at = self.now = trace[0].at
        for change in trace:
            while (look := self._next_look()) < change.at:
                self._train(look)
                self._ask(look - opened_at)
            self._train(change.at)
            self._change(change, change.at - opened_at)
        self._save(self.now)
        return self

    def _next_look(self) -> float:
        """Return the time of the leader's next decision: the strategy's, and after each checkpoint."""
        if not self.waiting or not self.members:
            return math.inf
        saved = self.saved_at + self.interval
        settled = [at for at in (self.saved_at + SETTLE_SECONDS, saved) if at > self.now]
        return min([self._look_at, *settled])

    def _train(self, until: float) -> None:
        """Train until then."""
        while self.members and self.saved_at + self.interval <= until:
            self._save(self.saved_at + self.interval)
        self.now = until

    def _save(self, at: float) -> None:
        self.useful += len(self.members) * max(0.0, at - self.saved_at)
        self.saved_at = max(at, self.saved_at)

    def _change(self, change: Change, age: float) -> None:
        self.waiting.update(dict.fromkeys(change.added, self.now))
        for node in change.removed:
            self.waiting.pop(node, None)
        lost = self.members.intersection(change.removed)
        if lost:
            self.losses.update(dict.fromkeys(lost, HostLosses(1, age)))
        if lost or not self.members:
            self._restart(FOUND_AFTER if lost else 0.0, lost)
        self._ask(age)

    def _ask(self, age: float) -> None:
        """Ask the strategy for a resize now."""
        self._look_at = math.inf
        if not self.waiting or not self.members:
            return
        allowed_at = self.resized_at + max(RESIZE_PAUSE_SECONDS, RESIZE_PAUSE_FACTOR * self.stop)
        case = ResizeCase(
            waited=self.now - max(self.round_at, min(self.waiting.values())),
            round_age=self.now - self.round_at,
            at_stake=max(0.0, self.now - self.saved_at),
            restarts_often=restarts_often(Counters(losses=self.losses), age),
            resize_wait=RESIZE_WAIT,
        )
        look_at = max(self.now + self.strategy(case), allowed_at)
        if look_at > self.now:
            self._look_at = look_at
            return
        self.resizes += 1
        self.resized_at = self.now + self.stop
        self._restart(0.0, set())

    def _restart(self, found_after: float, lost: set[str]) -> None:
        """Continue from the last checkpoint with all present nodes."""
        self.lost += len(self.members) * max(0.0, self.now - self.saved_at)
        self.round_at = self.now + found_after + (self.stop if self.members else 0.0)
        self.members = (self.members - lost) | self.waiting.keys()
        self.waiting.clear()
        self.saved_at = self.round_at + self.start
