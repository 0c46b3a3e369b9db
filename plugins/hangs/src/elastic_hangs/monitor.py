"""A monitor that tells when a round makes no progress, finds out where its ranks are, and ends one that hangs.

The node that sees no progress asks all nodes where their ranks are (rule L14), and asks again in time, until a hang was
found so often that its culprit may be ended. ``judgement`` makes the report.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from elastic_core import hookimpl
from elastic_core.config import RunConfig
from elastic_core.events import Event, Field, Level, describe_duration
from elastic_core.monitors import RunningRound
from elastic_core.questions import AskedQuestion, NodeAnswer
from elastic_core.threads import PatientThread
from elastic_hangs import stack_dump, stacks
from elastic_hangs.flags import HANG_TIMEOUT, HANG_WINDOW
from elastic_hangs.judgement import (
    FULL_STACKS,
    HANG,
    LOOKS,
    STACKS,
    LocalStacks,
    Report,
    describe_absent,
    describe_hang,
    is_new,
    next_question_at,
    sum_up,
)
from elastic_hangs.stacks import PySpy, Wanted
from elastic_hangs.watch import HangWatch, hang_check_interval

NOTE = "no progress"  # the name of the note that ``elastic status`` shows


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
    def elastic_worker_startup(self) -> Sequence[str]:
        """Prepare each Python worker to write its stacks, also where hangs are not looked for."""
        return (stack_dump.__file__,)

    @hookimpl(tryfirst=True)  # the report of a hang comes before what others say of it
    def elastic_round_starts(self, round: RunningRound) -> None:
        """Watch a round, unless that is switched off, and answer where its ranks are."""
        self._spy.say = lambda message: round.publish(Event("py_spy", message, Level.WARNING))
        watch = None if self._window == 0 else HangWatch(self._window, round)
        watched = WatchedRound(round, watch, partial(stacks.locate, spy=self._spy), ends_ranks=self._ends_ranks)
        watched.join_in()
        if self._window:
            round.read_output(lambda *stream: None, every_stream=True)  # a worker that prints does not hang
        if watch is not None:
            PatientThread(target=watched.run, name="elastic-hangs", daemon=True).start()

    @hookimpl
    def elastic_sum_up_answers(self, question: AskedQuestion, answers: Sequence[NodeAnswer], before: Any) -> Any:
        """Return the report of where all ranks are, and whether they hang."""
        if question.name not in (HANG, STACKS, FULL_STACKS):
            return None
        return asdict(sum_up(question, answers, None if before is None else Report(**before)))


class WatchedRound:
    """One round. ``watch`` is None where hangs are not looked for; ``ends_ranks`` as ``--hang_timeout`` wants it.

    ``locate`` finds out where ranks are: it takes what is wanted, the ranks, and the newest step.
    """

    def __init__(
        self,
        round: RunningRound,
        watch: HangWatch | None,
        locate: Callable[..., LocalStacks],
        *,
        ends_ranks: bool = False,
    ) -> None:
        self._round, self._watch, self._locate, self._ends_ranks = round, watch, locate, ends_ranks
        self._lock = threading.Lock()  # for what changes when the workers are looked at
        self._suspected = 0.0  # for how long a rank has shown no progress, at the last look
        self._asks = False  # whether the report on this node's question is still to come
        self._last: Report | None = None  # the newest report on a suspicion, of any node's
        self._last_at = float("-inf")
        self._last_hang: Report | None = None  # the newest report of a hang
        self._explained = ""  # what a failure would tell of it

    def join_in(self) -> None:
        """Answer questions about this round, and follow the reports."""
        self._round.answer(HANG, lambda value: self.answer(Wanted(judge=True)))
        self._round.answer(STACKS, lambda value: self.answer(Wanted()))
        self._round.answer(FULL_STACKS, lambda value: self.answer(Wanted(full=True)))
        self._round.follow_answers(HANG, self.take)
        for name in (STACKS, FULL_STACKS):
            self._round.follow_answers(name, self._publish)
        self._round.before_stop(self.say_last)

    def run(self) -> None:
        """Look at the workers until the round is closed."""
        assert self._watch is not None
        while not self._round.closed.wait(hang_check_interval(self._watch.window)):
            self.look()

    def look(self) -> None:
        """Look at the workers, and ask all nodes where theirs are if one here has shown no progress for long.

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
                what = f"for {describe_duration(seconds)}: elastic stacks says where its ranks are" if seconds else ""
                self._round.note(NOTE, what)
            due = next_question_at(self._last, self._last_at, seconds)
            if self._asks and not seconds:
                self._asks = False
                self._round.ask(HANG, None)
            elif seconds and not self._asks and time.monotonic() >= due:
                self._asks = True
                self._round.ask(HANG, {"window": seconds})

    def answer(self, wanted: Wanted) -> dict[str, Any]:
        """Return where the workers are. To judge a hang, look before, as the agent may have been paused, and after."""
        if wanted.judge:
            self.look()
        try:
            found = self._find(wanted)
        except OSError:  # no descriptor is left
            found = LocalStacks(places={})
        if wanted.judge:
            self.look()
        return found.to_json()

    def say_last(self) -> str:
        """Return where the workers are that wait for no other, before they are stopped."""
        return describe_absent(self._find(Wanted(brief=True)))

    def take(self, value: Any) -> None:
        """Take a report on a suspicion: tell people of a hang, and end the rank that is to blame."""
        found = None if value is None else Report(**value)
        with self._lock:
            self._asks, self._last, self._last_at = False, found, time.monotonic()
        self._publish(value)
        if found is None or not found.hang:
            self._explain("")
            return
        self._last_hang = found
        self._explain(describe_hang(found))
        if self._ends_ranks:
            self.end(found)

    def end(self, found: Report) -> None:
        """End the rank for which the others wait, on the node that has it, if nothing has moved at several looks."""
        if found.looks < LOOKS:
            return
        self.look()
        with self._lock:
            if self._watch is not None and self._watch.prints(found.culprit):
                self._last = None  # the report is an old one, as after a pause: all are asked again after a window
                return
        steps = self._steps()
        newest = max(steps.values(), default=None)
        step = newest if found.still else steps.get(found.culprit, newest)
        if found.step is not None and step is not None and step > found.step:
            return  # the report was read late, and the workers have gone on
        where = found.report.partition("\n")[0].rstrip(":")
        message = f"no progress for {found.window:g} s; {where}"
        self._round.fail(found.culprit, message, name="Hang", kill=True)

    def _publish(self, value: Any) -> None:
        if value is not None:
            self._round.publish(hang_event(Report(**value), self._last_hang))

    def _explain(self, text: str) -> None:
        """Have a failure tell the newest report, if it is one of a hang."""
        if text != self._explained:
            self._round.explain(text, instead_of=self._explained)
            self._explained = text

    def _find(self, wanted: Wanted) -> LocalStacks:
        watch, step = self._watch, max(self._steps().values(), default=None)
        with self._lock:
            ranks = [stacks.LocalRank.of(worker, watch) for worker in self._round.workers]
            quiet = set() if watch is None else {*watch.quiet}
        if watch is None:
            return self._locate(wanted, ranks, step)
        moved, positions = watch.advances(), watch.positions()
        before = watch.uses(quiet) if quiet else {}
        found = self._locate(wanted, ranks, step)
        advanced = {rank for rank, position in watch.positions().items() if position != positions.get(rank)}
        behind = {rank: at for rank, at in found.behind.items() if int(rank) not in advanced}
        after = watch.uses({*before}) if before else {}
        with self._lock:
            for pid, use in after.items():
                if pid in watch.quiet and watch.quiet[pid].at <= before[pid].at:  # else its silence began later
                    watch.quiet[pid] = watch.quiet[pid].without(before[pid], use)
        return replace(found, moved=found.moved or moved or bool(advanced), behind=behind)

    def _steps(self) -> dict[int, int]:
        newest = self._round.newest_progress()
        return {rank: reached.step for rank, (reached, _) in newest.items() if reached.step is not None}


def hang_event(report: Report, last: Report | None) -> Event:
    """Return the event of a report of where the ranks are: people see it if nothing moves, and it is not as before."""
    fields: dict[str, Field] = {
        "round": report.round,
        "why": report.why,
        "stacks": report.report,
        "step": report.step,
        "rank": report.culprit if report.hang and report.culprit >= 0 and report.report.startswith("rank ") else None,
        "window_s": report.window,
    }
    if is_new(report, last):
        return Event("hang", describe_hang(report), Level.WARNING, fields)
    return Event("stacks", describe_hang(report), Level.DEBUG, fields)
