"""A monitor that tells when a round makes no progress, finds out where its ranks are, and ends one that hangs (L14)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from elastic_core.agent import stacks
from elastic_core.agent.hangs import HangWatch, hang_check_interval, uses_of
from elastic_core.agent.py_spy import PySpy
from elastic_core.events import Event, Level
from elastic_core.hookspecs import hookimpl
from elastic_core.monitors import RunningRound
from elastic_core.protocol.entries import Stacks
from elastic_core.protocol.node_events import Locate
from elastic_core.protocol.roster import LocalStacks
from elastic_core.protocol.stacks import LOOKS
from elastic_core.threads import PatientThread

if TYPE_CHECKING:
    from elastic_core.config.run import RunConfig


class HangMonitor:
    """The plugin. ``locate`` finds out where ranks are."""

    def __init__(self, locate: stacks.Answer | None = None) -> None:
        self._given: float | None = None
        self._ends_ranks = False
        self._is_off = False
        self._locate = locate

    @hookimpl
    def elastic_configure(self, config: RunConfig) -> None:
        """Take ``--hang_window`` and ``--hang_timeout``."""
        self._ends_ranks = config.hang_timeout is not None
        self._given = config.hang_timeout if self._ends_ranks else config.hang_window
        self._is_off = self._given == 0

    @hookimpl
    def elastic_round_starts(self, round: RunningRound) -> None:
        """Watch a round, unless that is switched off, and answer where its ranks are."""
        if self._locate is None:
            publish = round.publish
            spy = PySpy(lambda message: publish(Event("py_spy", message, Level.WARNING)))
            self._locate = partial(stacks.locate, spy=spy)
        watched = WatchedRound(round, None if self._is_off else HangWatch(self._given, round.progress), self._locate)
        round.locate = watched.locate
        if not self._is_off:
            round.read_output(lambda rank: None, every_stream=True)  # a worker that prints does not hang
            PatientThread(target=watched.run, name="elastic-hangs", daemon=True).start()
        if self._ends_ranks:
            round.end_hung = watched.end


class WatchedRound:
    """One round. ``watch`` is None where hangs are not looked for."""

    def __init__(self, round: RunningRound, watch: HangWatch | None, locate: stacks.Answer) -> None:
        self._round, self._watch, self._locate = round, watch, locate
        self._lock = threading.Lock()  # held by whatever reads or changes ``watch``

    def run(self) -> None:
        """Look at the workers until the round is closed, and tell the agent when their silence begins and ends."""
        assert self._watch is not None
        told = 0.0
        while not self._round.closed.wait(hang_check_interval(self._watch.window)):
            if (seconds := self.look(self._watch)) != told:
                told = seconds
                self._round.suspect(seconds)

    def look(self, watch: HangWatch) -> float:
        """Return for how long a worker has made no progress, once that is longer than it should be; else 0.

        A worker that has ended, or whose program has, makes none.
        """
        living = [worker for worker in self._round.workers if worker.is_running and not worker.is_over]
        try:
            with self._lock:
                return watch.look(living)
        except OSError:  # no descriptor is left
            return 0.0

    def locate(self, asked: Locate) -> LocalStacks:
        """Find out where the workers are."""
        try:
            return self._answer(asked)
        except OSError:  # no descriptor is left
            return LocalStacks(answers=asked.index, places={})

    def end(self, found: Stacks) -> None:
        """End the rank for which the others wait, if it is here and nothing has moved at several looks."""
        if not found.hang or found.looks < LOOKS or found.round != self._round.number:
            return
        step = self._newest_step() if found.still else self._round.progress.step(found.culprit)[0]
        if found.step is not None and step is not None and step > found.step:
            return  # the report was read late, and the workers have gone on
        where = found.report.partition("\n")[0].rstrip(":")
        message = f"no progress for {found.window:g} s; {where}"
        self._round.fail(found.culprit, message, name="Hang", kill=True)

    def _answer(self, asked: Locate) -> LocalStacks:
        step, watch, ranks = self._newest_step(), self._watch, self._ranks()
        if watch is None:
            return self._locate(asked, ranks, step)
        with self._lock:
            quiet, moved, positions = {*watch.quiet}, watch.advances(), watch.positions()
        before = uses_of(quiet) if quiet else {}
        found = self._locate(asked, ranks, step)
        gone_on = {rank for rank, position in watch.positions().items() if position != positions.get(rank)}
        behind = {rank: at for rank, at in found.behind.items() if int(rank) not in gone_on}
        after = uses_of(set(before)) if before else {}
        with self._lock:
            for pid, use in after.items():
                if pid in watch.quiet:
                    watch.quiet[pid] = watch.quiet[pid].without(before[pid], use)
        return replace(found, moved=found.moved or moved or bool(gone_on), behind=behind)

    def _ranks(self) -> Sequence[stacks.LocalRank]:
        with self._lock:
            return [stacks.LocalRank.of(worker, self._watch) for worker in self._round.workers]

    def _newest_step(self) -> int | None:
        steps = [reached.step for reached, _ in self._round.newest_progress().values() if reached.step is not None]
        return max(steps, default=None)
