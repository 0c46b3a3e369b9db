"""How a node goes away: a signal, or ``elastic drain``, and what the workers here may still finish before that."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from elastic_core.agent.event_loop import Depart
from elastic_core.config.run import RunConfig
from elastic_core.exit_codes import signal_name, signalled
from elastic_core.protocol.node import NodeState
from elastic_core.protocol.node_events import Leaving, NodeEvent, Work

STORE_PATIENCE = 0.5
"""Seconds that a leaving node waits for the store to say whether others have finished."""


@dataclass(kw_only=True)
class Departure:
    """What is known of this node's leaving. Everything runs on the agent's loop."""

    config: RunConfig
    handled: frozenset[int]
    """The signals on which the node leaves."""
    state: Callable[[], NodeState]
    step: Callable[[NodeEvent], None]
    post: Callable[[Depart], None]
    """To the loop, from any thread."""
    later: Callable[[float, Depart], None]
    """To the loop, in so many seconds."""
    ask_finished: Callable[[Callable[[bool], None]], None]
    """Find out whether other nodes have finished."""
    kill: Callable[[], None]
    """End all workers at once."""
    say: Callable[[str, str], None]
    received: int | None = None
    """The first signal that was received, which the workers get, too."""
    _finishing: bool = field(default=False, init=False)
    """Whether the workers here were left to finish as others have."""

    def on_signal(self, signum: int) -> None:
        """The agent received a signal; the second one ends everything at once."""
        if signum not in self.handled:
            return
        if self.received is not None:
            self.say("signal", f"received {signal_name(signum)} again: killing the workers")
            self.kill()
            self.step(Leaving.signalled(signum, signal_name(signum)))
        else:
            self.received = signum
            self._ask(Depart(signum))

    def on_drain(self, why: str) -> None:
        """Somebody wants this node to leave, for which there is no hurry."""
        if self.received is None and self.state().leaving is None:
            self._ask(Depart(signal.SIGTERM, why=why))

    def depart(self, order: Depart) -> None:
        """Leave; where others have finished, not before the workers here had their grace to do so, too (rule L7)."""
        state, ours = self.state(), self.config.shutdown_timeout
        grace = 0.0 if order.final or state.work is not Work.RUNNING else self._grace(order)
        if state.leaving is not None and grace >= state.leaving.grace:
            return  # it leaves as soon as that already
        why = order.why or f"received {signal_name(order.signum)}"
        busy = state.work in (Work.RUNNING, Work.STOPPING)
        again = "; once more to kill the workers at once" if busy and not order.why else ""
        if order.final or not (order.finished or self._finishing):
            within = f" within {grace:g} s, when all workers have stopped together" if grace else ""
            self.say("signal", f"{why}: leaving{within}{again}")
            self.step(Leaving(why, signalled(order.signum), grace))
            if grace:
                self.later(grace, Depart(order.signum, final=True, why=order.why))
        elif not self._finishing:
            self._finishing = True
            self.say("signal", f"{why}: other nodes have finished, the workers here have {ours:g} s to{again}")
            self.later(ours, Depart(order.signum, final=True, why=order.why))

    def _ask(self, order: Depart) -> None:
        if self.state().work is not Work.RUNNING or self.config.max_nodes == 1:
            self.depart(order)
            return
        self.ask_finished(lambda finished: self.post(Depart(order.signum, finished=finished, why=order.why)))
        self.later(STORE_PATIENCE, order)

    def _grace(self, order: Depart) -> float:
        """How long the workers may go on, to stop together with all others; 0: not at all."""
        if order.why:
            return self.state().ledger.settings.timing.plan_timeout
        return self.config.preemption_grace if order.signum == signal.SIGTERM else 0.0
