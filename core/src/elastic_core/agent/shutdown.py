"""How a node leaves, after a signal or ``elastic drain``, and how long its workers may go on before that."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from elastic_core.agent.join_gate import repeats_request
from elastic_core.agent.resources import Resources
from elastic_core.events import Event
from elastic_core.exit_codes import signal_name, signalled
from elastic_core.protocol.entries import Entry
from elastic_core.protocol.graceful_stop import find_drain
from elastic_core.protocol.node import NodeState, supersedes
from elastic_core.protocol.node_events import Exit, Leaving, NodeEvent, Work
from elastic_core.session.session import Session

HOST_RESERVE_SHARE = 0.3  # of the time until the host is taken away: for a stop in any case, when the grace is over
HOST_RESERVE_MAX_SECONDS = 10.0  # this is enough
BY_HAND = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # a person ends the run: it is not preempted
STORE_MAX_SECONDS = 0.5  # for the store's answer whether other nodes have finished
TO_WARDEN = "the workers' parent process received {}: it counts as sent to this agent"


def settle_exit(end: Exit, received: int | None) -> Exit:
    """Return how the agent ends: after a signal it does not enter the job again, whatever it was leaving for."""
    if not end.rejoin or received is None:
        return end
    return Exit(signalled(received), f"received {signal_name(received)}")


class Owner(Protocol):
    """The agent of the node that leaves: a :class:`~elastic_core.agent.supervisor.Supervisor`."""

    resources: Resources
    session: Session
    state: NodeState

    def step(self, event: NodeEvent | None) -> None:
        """Have the node's state machine take an event, and do what follows."""

    def kill_workers(self) -> None:
        """End all workers at once."""


@dataclass(frozen=True, slots=True)
class Depart:
    """The node should leave: it received a signal, or ``elastic drain`` requested it."""

    signum: int
    finished: bool = False  # whether the workers of other nodes have all exited with 0 (rule L7)
    final: bool = False  # whether the grace, in which workers here may finish or stop with all others, is over
    why: str = ""  # why a drain was requested, or what a plugin has learned; '' for a signal
    within: float | None = None  # seconds until this host is taken away, as a plugin has learned


@dataclass
class Departure:
    """The state of this node's departure. All methods run on the agent's loop."""

    owner: Owner
    ids: Collection[str]  # of the nodes that this agent is, and was
    drained: str = ""  # why it should leave, if that was requested before it had joined
    received: int | None = None  # the first signal that was received, which the workers get too
    signalled_at: float | None = None  # when this agent itself received its first one
    _finishing: bool = False  # whether the workers here may finish, as those of other nodes have

    def begin(self) -> None:
        """Leave if a drain was requested before the node had joined."""
        if self.drained:
            self.on_drain(self.drained)

    def read(self, entries: Iterable[Entry]) -> None:
        """Leave if one of these entries requests a drain."""
        if why := find_drain(entries, self.ids):
            self.on_drain(why)

    def on_signal(self, signum: int, *, to_warden: bool = False) -> None:
        """Leave after a signal, also one to the warden; a second request to this agent ends the workers at once.

        So a signal to all processes of a job, agent and warden, as Slurm and systemd send it, counts once.
        """
        if signum not in self.owner.resources.signals:
            return
        name, now = signal_name(signum), self.owner.resources.node.now()
        if not to_warden and self.signalled_at is not None:
            if not repeats_request(signum, now - self.signalled_at):
                self._say(f"received {name} again: killing the workers")
                self.owner.kill_workers()
                self.owner.step(Leaving.signalled(signum, name))
            return
        if not to_warden:
            self.signalled_at = now
        if self.received is None:
            self.received = signum
            if to_warden:
                self._say(TO_WARDEN.format(name))
            self._ask(Depart(signum))

    def on_drain(self, why: str) -> None:
        """Leave after a drain was requested."""
        leaving = self.owner.state.leaving
        if self.received is None and (leaving is None or leaving.rejoin):
            self._ask(Depart(signal.SIGTERM, why=why))

    def on_host_ends(self, why: str, seconds: float, noticed_at: float) -> None:
        """Leave before this host is taken away, also if the node leaves already and would be later.

        It is taken away ``seconds`` after ``noticed_at`` of the agent's monotonic clock.
        """
        left = max(0.0, seconds - (self.owner.resources.node.now() - noticed_at))
        self._ask(Depart(signal.SIGTERM, why=why, within=left))

    def depart(self, order: Depart) -> None:
        """Leave. If other nodes have finished, first give the workers here a grace to finish too (rule L7)."""
        state, ours = self.owner.state, self.owner.resources.node.config.shutdown_timeout
        grace = 0.0 if order.final or state.work is not Work.RUNNING else self._grace(order)
        if not supersedes(state.leaving, grace):
            return  # it already leaves at least as soon
        why = order.why or f"received {signal_name(order.signum)}"
        busy = state.work in (Work.RUNNING, Work.STOPPING)
        again = "; once more to kill the workers at once" if busy and not order.why else ""
        if order.final or not (order.finished or self._finishing):
            within = f" within {grace:g} s, when all workers have stopped together" if grace else ""
            self._say(f"{why}: leaving{within}{again}")
            self.owner.step(Leaving(why, signalled(order.signum), grace))
            if grace:
                self._later(grace, Depart(order.signum, final=True, why=order.why))
        elif not self._finishing:
            self._finishing = True
            self._say(f"{why}: other nodes have finished, the workers here have {ours:g} s to{again}")
            self._later(ours, Depart(order.signum, final=True, why=order.why))

    def _ask(self, order: Depart) -> None:
        resources = self.owner.resources
        if self.owner.state.work is not Work.RUNNING or resources.node.config.max_nodes == 1:
            self.depart(order)
            return
        post = resources.loop.post
        self.owner.session.ask_finished(lambda found: post(partial(self.depart, replace(order, finished=found))))
        self._later(STORE_MAX_SECONDS, order)

    def _later(self, seconds: float, order: Depart) -> None:
        self.owner.resources.loop.later(seconds, partial(self.depart, order))

    def _say(self, message: str) -> None:
        self.owner.resources.node.publish(Event("signal", message))

    def _grace(self, order: Depart) -> float:
        """Return how long the workers may go on, to stop together with all others; 0 for not at all."""
        if order.within is not None:
            longest = self.owner.state.ledger.settings.timing.plan_timeout
            reserve = min(HOST_RESERVE_SHARE * order.within, HOST_RESERVE_MAX_SECONDS)
            return round(min(longest, order.within - reserve), 1)
        if order.why:
            return self.owner.state.ledger.settings.timing.plan_timeout
        return 0.0 if order.signum in BY_HAND else self.owner.resources.node.config.preemption_grace
