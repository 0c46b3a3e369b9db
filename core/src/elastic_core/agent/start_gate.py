"""Delays the workers of a round while plugins say that something must happen first (``elastic_before_start``).

The plugins are asked on another thread while the workers of the last round are being stopped, so that the answer is
mostly there when the next ones are to start. A plugin that has nothing to look at answers at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from elastic_core.agent.event_loop import EventLoop
from elastic_core.agent.worker import Node
from elastic_core.events import Event, Field, Level
from elastic_core.gates import StartGate

WAIT_MAX_SECONDS = 10.0  # from the wanted start of the workers to their start
ASK_INTERVAL_SECONDS = 0.25
ANSWER_MAX_SECONDS = 1.0
"""From the first wanted start of workers on this node to an answer; then they start without one. Later starts wait for
no answer: the question was put when the last workers began to stop."""


class StartDelay:
    """The wait before the start of workers. All methods run on the agent's loop."""

    def __init__(self, node: Node, loop: EventLoop) -> None:
        self._node, self._loop = node, loop
        self._serial = 0  # of the newest question
        self._pending = 0  # the serial number of the question that has no answer yet; 0 for none
        self._why = ""  # the newest answer
        self._round = 0
        self._start: Callable[[], None] | None = None  # what waits
        self._since = 0.0
        self._reported = False  # whether it was reported that it waits
        self._started = False  # whether workers have been started here

    def prepare(self, round: int) -> None:
        """Ask about the next round, whose number is at least ``round``."""
        self._start, self._why, self._round = None, "", round
        self._question()

    def start(self, round: int, start: Callable[[], None]) -> None:
        """Call ``start`` once the workers of this round need not wait; at once where nothing is known of a wait."""
        self._start, self._since, self._round, self._reported = start, self._node.now(), round, False
        if self._why:
            self._wait()
        elif self._pending and self._pending == self._serial and not self._started:
            self._loop.at(self._since + ANSWER_MAX_SECONDS, partial(self._look_again, self._serial))
        else:
            self._go()

    def _on_answer(self, serial: int, why: str) -> None:
        """Take the answer to a question: why the workers should wait, '' if they need not."""
        self._pending = 0
        if serial != self._serial:  # about an earlier round
            self._question()
            return
        self._why = why
        if self._start is None:
            return
        if not why or self._waited() >= WAIT_MAX_SECONDS:
            self._go()
        else:
            self._wait()

    def _look_again(self, serial: int = 0) -> None:
        """Ask the plugins again, unless there is a newer question than ``serial``, or start the workers in any case."""
        if self._start is None:
            return
        no_reason = not self._why and (not self._pending or self._waited() >= ANSWER_MAX_SECONDS)
        if no_reason or self._waited() >= WAIT_MAX_SECONDS:
            self._go()
        elif serial == self._serial and not self._pending:
            self._question()

    def _waited(self) -> float:
        return 0.0 if self._start is None else self._node.now() - self._since

    def _wait(self) -> None:
        """Ask again after a pause, and start in any case in the end."""
        if not self._reported:
            self._reported = True
            message = f"the workers of round {self._round} wait for up to {WAIT_MAX_SECONDS:g} s: {self._why}"
            self._node.publish(Event("start_waits", message, Level.WARNING, {"round": self._round, "why": self._why}))
            self._loop.at(self._since + WAIT_MAX_SECONDS, self._look_again)
        self._loop.later(ASK_INTERVAL_SECONDS, partial(self._look_again, self._serial))

    def _go(self) -> None:
        waited = round(self._waited(), 3)
        start, self._start, self._started = self._start, None, True
        fields: dict[str, Field] = {"round": self._round, "waited_s": waited, "why": self._why}
        if self._why:
            message = f"the workers of round {self._round} start after {waited:.1f} s, although {self._why}"
            self._node.publish(Event("started_regardless", message, Level.WARNING, fields))
        elif self._reported:
            message = f"the workers of round {self._round} start after a wait of {waited:.1f} s"
            self._node.publish(Event("start_waited", message, Level.INFO, fields))
        if start is not None:
            start()

    def _question(self) -> None:
        """Ask the plugins on another thread, unless they have not answered the last question yet."""
        if (ask := self._node.plugins.before_start) is None:
            return
        self._serial += 1
        if self._pending:
            return
        self._pending = serial = self._serial
        gate, answer = StartGate(self._round, self._node.run_uid, self._waited()), partial(self._on_answer, serial)
        self._node.runtime.ask(lambda: partial(answer, ask(gate)), then=self._loop.post, name="elastic-start")
