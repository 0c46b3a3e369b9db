"""A node's two gates: the checks of plugins before it joins (rule L17), and their delay of its workers (rule L18).

A signal, or the end of this host, interrupts the checks, and the node leaves before it has entered. Before workers
start, plugins are asked on another thread while the workers of the last round are being stopped, so that the answer is
mostly there when the next ones are to start. A plugin that has nothing to look at answers at once.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from functools import partial
from types import FrameType

from elastic_core.agent.event_loop import EventLoop
from elastic_core.agent.worker import Node
from elastic_core.errors import UnhealthyNodeError, in_one_line
from elastic_core.events import Event, Field, Level
from elastic_core.exit_codes import signal_name, signalled
from elastic_core.gates import CHECK_MAX_SECONDS, LOOK_SECONDS, HostEnd, JoinCheck, JoinGate, StartGate, wait_for_any
from elastic_core.protocol.node_events import Exit
from elastic_core.threads import asked
from elastic_core.warden import messages
from elastic_core.warden.client import Warden

STARTER_MAX_SECONDS = 60.0
"""For so long a new node waits for its starter before it joins; a running job goes on meanwhile."""
END_MAX_SECONDS = 5.0  # for which a check is awaited once the gate is closed: it may have processes to end
SAME_REQUEST_SECONDS = 1.0  # in which one request to end arrives as several signals
WAIT_MAX_SECONDS = 10.0  # from the wanted start of the workers to their start
ASK_INTERVAL_SECONDS = 0.25
ANSWER_MAX_SECONDS = 1.0
"""From the first wanted start of workers on this node to an answer; then they start without one. Later starts wait for
no answer: the question was put when the last workers began to stop."""


def pass_gate(gate: JoinGate, interruption: Interruption) -> None:
    """Call all checks, one after another; return early at the ``interruption``, and close the gate then.

    Raises:
        UnhealthyNodeError: A check keeps this host out.
    """
    try:
        for check in gate.checks:
            if not interruption.is_due():
                _call(check, gate, interruption)
    finally:
        gate.closed.set()


def _call(check: JoinCheck, gate: JoinGate, interruption: Interruption) -> None:
    """Call a check on another thread, and raise its error."""
    gate.start_clock()
    answer = asked(check.call, name=f"elastic-gate-{check.plugin}")
    while not wait([answer], min(LOOK_SECONDS, gate.seconds_left())).done:
        if interruption.is_due():
            gate.closed.set()
            wait([answer], END_MAX_SECONDS)
            return
        if gate.seconds_left() <= 0:
            raise UnhealthyNodeError(
                f"This node does not enter job {gate.config.rdzv_id!r}: the plugin {check.plugin!r} has not said "
                f"within {CHECK_MAX_SECONDS:g} s whether it may.",
                hint="Look for a file system or a service here that does not answer.",
            )
    if (problem := answer.exception()) is None:
        return
    if isinstance(problem, UnhealthyNodeError):
        raise problem
    fields = {"plugin": check.plugin, "hook": "elastic_before_join"}
    message = f"a check of the plugin {check.plugin!r} raised, and keeps no node out: {in_one_line(problem)}"
    gate.publish(Event("plugin_failed", message, Level.WARNING, fields))


def repeats_request(signum: int, seconds: float) -> bool:
    """Return whether a signal ``seconds`` after the first one belongs to the same request to end.

    ``timeout`` and schedulers signal a process and then its group. A signal from the keyboard is always a new request.
    """
    return signum not in (signal.SIGINT, signal.SIGQUIT) and seconds < SAME_REQUEST_SECONDS


class Interruption:
    """Ends the waits of a node that is being checked. Make and close it on the main thread: it sets signal handlers.

    The first of ``signals`` becomes :attr:`end`. A second request ends this process at once, and the warden then ends
    all that it has started.
    """

    def __init__(self, signals: Iterable[int], host_end: HostEnd) -> None:
        self.end: Exit | None = None  # how the agent ends; None while nothing makes it leave
        self._is_due = False
        self._signalled_at: float | None = None
        self._old_handlers = {signum: signal.signal(signum, self._on_signal) for signum in signals}
        host_end.set_listener(lambda why, _seconds, _at: self._leave(signal.SIGTERM, why))

    def wake(self) -> None:
        """End all waits, for what the caller knows. Any thread may call this."""
        self._is_due = True

    def is_due(self) -> bool:
        """Return True if all waits are to end."""
        return self._is_due

    def close(self) -> None:
        """Restore the signal handlers; :attr:`end` stays."""
        for signum, handler in self._old_handlers.items():
            signal.signal(signum, handler)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._signalled_at is None:
            self._signalled_at = now
            self._leave(signum, f"received {signal_name(signum)}")
        elif not repeats_request(signum, now - self._signalled_at):
            os._exit(signalled(signum))

    def _leave(self, signum: int, why: str) -> None:
        self.end = self.end or Exit(signalled(signum), f"{why}, before this node had entered the job")
        self.wake()


def wait_for_starter(warden: Warden, interruption: Interruption) -> list[messages.WardenEvent]:
    """Return the events of the warden until its starter is ready, and has imported all that it is to import, or cannot.

    Ends earlier if there is no process that forks workers, after ``STARTER_MAX_SECONDS``, or at the ``interruption``.
    """
    failed = messages.StarterFailed | messages.WardenDied
    heard: list[messages.WardenEvent] = []
    deadline = time.monotonic() + STARTER_MAX_SECONDS
    while (left := deadline - time.monotonic()) > 0 and wait_for_any([warden], left, interruption.is_due):
        heard += (events := warden.receive())
        ready = [event.complete for event in events if isinstance(event, messages.StarterReady)]
        if any(ready) or any(isinstance(event, failed) for event in events):
            break
        if ready:
            warden.complete_starter()
    return heard


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
