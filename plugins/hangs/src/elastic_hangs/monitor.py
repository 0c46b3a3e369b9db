"""A monitor that tells when a round makes no progress, finds out where its ranks are, and ends one that hangs (L14)."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from elastic_core import hookimpl
from elastic_core.events import Event, Level
from elastic_core.monitors import RunningRound
from elastic_core.protocol import LOOKS, LocalStacks, Locate, Stacks
from elastic_core.threads import PatientThread
from elastic_hangs import stacks
from elastic_hangs.flags import HANG_TIMEOUT, HANG_WINDOW
from elastic_hangs.py_spy import PySpy
from elastic_hangs.watch import HangWatch, hang_check_interval

if TYPE_CHECKING:
    from elastic_core.config import RunConfig


class HangMonitor:
    """The plugin."""

    def __init__(self) -> None:
        self._window: float | None = None  # None for one that follows from the longest step, 0 for none
        self._ends_ranks = False
        self._spy = PySpy()

    @hookimpl
    def elastic_configure(self, config: RunConfig) -> None:
        """Take ``--hang_window`` and ``--hang_timeout``."""
        timeout = config.of(HANG_TIMEOUT)
        self._ends_ranks = timeout is not None
        self._window = config.of(HANG_WINDOW) if timeout is None else timeout

    @hookimpl
    def elastic_round_starts(self, round: RunningRound) -> None:
        """Watch a round, unless that is switched off, and answer where its ranks are."""
        self._spy.say = lambda message: round.publish(Event("py_spy", message, Level.WARNING))
        watch = None if self._window == 0 else HangWatch(self._window, round)
        watched = WatchedRound(round, watch, partial(stacks.locate, spy=self._spy))
        round.answer_where(watched.locate)
        if self._ends_ranks:
            round.follow_hangs(watched.end)
        if self._window:
            round.read_output(lambda rank: None, every_stream=True)  # a worker that prints does not hang
        if watch is not None:
            PatientThread(target=watched.run, name="elastic-hangs", daemon=True).start()


class WatchedRound:
    """One round. ``watch`` is None where hangs are not looked for."""

    def __init__(self, round: RunningRound, watch: HangWatch | None, locate: stacks.Answer) -> None:
        self._round, self._watch, self._locate = round, watch, locate
        self._suspected = 0.0  # what the agent was told last
        self._lock = threading.Lock()  # for what changes when the workers are looked at

    def run(self) -> None:
        """Look at the workers until the round is closed."""
        assert self._watch is not None
        while not self._round.closed.wait(hang_check_interval(self._watch.window)):
            self.look()

    def look(self) -> None:
        """Look at the workers, and tell the agent when a silence begins, ends, or becomes longer.

        A worker that has ended, or whose program has, makes no progress.
        """
        if self._watch is None:
            return
        with self._lock:
            living = [worker for worker in self._round.workers if worker.is_running and not worker.is_over]
            seconds = 0.0
            with suppress(OSError):  # no descriptor is left
                seconds = self._watch.look(living)
            if seconds != self._suspected:
                self._suspected = seconds
                self._round.suspect_hang(seconds)

    def locate(self, asked: Locate) -> LocalStacks:
        """Find out where the workers are. If a hang is suspected, tell first if the silence has ended meanwhile."""
        try:
            found = self._find(asked)
        except OSError:  # no descriptor is left
            found = LocalStacks(answers=asked.index, places={})
        if asked.judge:
            self.look()
        return found

    def end(self, found: Stacks) -> None:
        """End the rank for which the others wait, if it is here and nothing has moved at several looks."""
        if found.looks < LOOKS:
            return
        steps = self._steps()
        newest = max(steps.values(), default=None)
        step = newest if found.still else steps.get(found.culprit, newest)
        if found.step is not None and step is not None and step > found.step:
            return  # the report was read late, and the workers have gone on
        where = found.report.partition("\n")[0].rstrip(":")
        message = f"no progress for {found.window:g} s; {where}"
        self._round.fail(found.culprit, message, name="Hang", kill=True)

    def _find(self, asked: Locate) -> LocalStacks:
        watch, step = self._watch, max(self._steps().values(), default=None)
        with self._lock:
            ranks = [stacks.LocalRank.of(worker, watch) for worker in self._round.workers]
            quiet = set() if watch is None else {*watch.quiet}
        if watch is None:
            return self._locate(asked, ranks, step)
        moved, positions = watch.advances(), watch.positions()
        before = watch.uses(quiet) if quiet else {}
        found = self._locate(asked, ranks, step)
        gone_on = {rank for rank, position in watch.positions().items() if position != positions.get(rank)}
        behind = {rank: at for rank, at in found.behind.items() if int(rank) not in gone_on}
        after = watch.uses({*before}) if before else {}
        with self._lock:
            for pid, use in after.items():
                if pid in watch.quiet and watch.quiet[pid].at <= before[pid].at:  # else its silence began later
                    watch.quiet[pid] = watch.quiet[pid].without(before[pid], use)
        return replace(found, moved=found.moved or moved or bool(gone_on), behind=behind)

    def _steps(self) -> dict[int, int]:
        """Return the newest step of each rank of which one is known."""
        newest = self._round.newest_progress()
        return {rank: reached.step for rank, (reached, _) in newest.items() if reached.step is not None}
