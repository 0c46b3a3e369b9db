"""Delays the workers of a round while plugins say that something must happen first (``elastic_workers_wait``).

The plugins are asked on another thread while the workers of the last round are being stopped, so that a start for which
nothing is to be waited for is not delayed: it uses the answer that is there, and does not wait for one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread

from elastic_core.agent.event_loop import EventLoop
from elastic_core.events import Event, Field, Level

WAIT_MAX_SECONDS = 10.0  # from the wanted start of the workers to their start
ASK_INTERVAL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class StartAnswer:
    """The plugins have answered the question ``serial``: why the workers should wait, '' if they need not."""

    serial: int
    why: str


@dataclass(frozen=True, slots=True)
class StartDue:
    """A timer: ask again, or start after ``WAIT_MAX_SECONDS``."""

    serial: int


class StartGate:
    """The wait before the start of workers. All methods run on the agent's loop.

    Args:
        ask: Asks the plugins about the round of this number; blocks. None if no plugin implements the hook.
        loop: The agent's loop, whose owner passes a :class:`StartAnswer` and a :class:`StartDue` to :meth:`receive`.
        now: The monotonic clock.
        publish: Tells the observers.
    """

    def __init__(
        self,
        ask: Callable[[int], str] | None,
        loop: EventLoop,
        now: Callable[[], float],
        publish: Callable[[Event], None],
    ) -> None:
        self._ask, self._loop, self._now, self._publish = ask, loop, now, publish
        self._serial = self._answered = 0  # of the newest question, and of the newest answer
        self._asking = False  # whether a question has no answer yet; then no other is put
        self._why = ""
        self._round = 0
        self._start: Callable[[], None] | None = None  # what waits
        self._since = 0.0

    def prepare(self, round: int) -> None:
        """Ask about the next round, whose number is at least ``round``."""
        self._start, self._why, self._round = None, "", round
        self._question()

    def start(self, round: int, start: Callable[[], None]) -> None:
        """Call ``start`` as soon as the workers of this round need not wait; at once if nothing is known of a wait."""
        self._start, self._since, self._round = None, self._now(), round
        if not self._why:
            start()
            return
        message = f"the workers of round {round} wait for up to {WAIT_MAX_SECONDS:g} s: {self._why}"
        self._publish(Event("start_waits", message, Level.WARNING, {"round": round, "why": self._why}))
        self._start = start
        self._question()
        self._loop.at(self._since + WAIT_MAX_SECONDS, StartDue(self._serial))

    def receive(self, event: StartAnswer | StartDue) -> None:
        """Go on after an answer, or after a pause."""
        if isinstance(event, StartAnswer):
            self._asking = False
            if event.serial != self._serial:  # a question about an earlier round
                self._question()
                return
            self._answered, self._why = event.serial, event.why
        if self._start is None:
            return
        if not self._why or self._now() >= self._since + WAIT_MAX_SECONDS:
            self._go()
        elif isinstance(event, StartAnswer):
            self._loop.at(self._now() + ASK_INTERVAL_SECONDS, StartDue(event.serial))
        elif event.serial == self._answered == self._serial:
            self._question()

    def _go(self) -> None:
        start, self._start = self._start, None
        waited = round(self._now() - self._since, 3)
        fields: dict[str, Field] = {"round": self._round, "waited_s": waited, "why": self._why}
        if self._why:
            message = f"the workers of round {self._round} start after {waited:.1f} s, although {self._why}"
            self._publish(Event("started_regardless", message, Level.WARNING, fields))
        else:
            message = f"the workers of round {self._round} start after a wait of {waited:.1f} s"
            self._publish(Event("start_waited", message, Level.INFO, fields))
        if start is not None:
            start()

    def _question(self) -> None:
        if self._ask is None:
            return
        self._serial += 1
        if self._asking:
            return
        self._asking = True
        serial, round, ask, post = self._serial, self._round, self._ask, self._loop.post

        def run() -> None:
            post(StartAnswer(serial, ask(round)))

        Thread(target=run, name="elastic-start", daemon=True).start()
