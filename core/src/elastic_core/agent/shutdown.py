"""The departure of a node after a signal or ``elastic drain``, and the time that its workers get before that."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from elastic_core.agent.gates import repeats_request
from elastic_core.agent.resources import Resources
from elastic_core.events import Event
from elastic_core.exit_codes import signal_name, signalled
from elastic_core.protocol.entries import Entry
from elastic_core.protocol.node import NodeState, supersedes
from elastic_core.protocol.node_events import Exit, Leaving, NodeEvent, Work
from elastic_core.protocol.planned_stop import find_drain
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
            by_hand = signum in BY_HAND
            self._ask(signum, "", 0.0 if by_hand else self.owner.resources.node.config.preemption_grace)

    def on_drain(self, why: str) -> None:
        """Leave after a drain was requested."""
        leaving = self.owner.state.leaving
        if self.received is None and (leaving is None or leaving.rejoin):
            self._ask(signal.SIGTERM, why, self.owner.state.ledger.settings.timing.plan_timeout)

    def on_host_ends(self, why: str, seconds: float, noticed_at: float) -> None:
        """Leave before this host is taken away, also if the node leaves already and would be later.

        It is taken away ``seconds`` after ``noticed_at`` of the agent's monotonic clock.
        """
        left = max(0.0, seconds - (self.owner.resources.node.now() - noticed_at))
        reserve = min(HOST_RESERVE_SHARE * left, HOST_RESERVE_MAX_SECONDS)
        longest = self.owner.state.ledger.settings.timing.plan_timeout
        self._ask(signal.SIGTERM, why, round(min(longest, left - reserve), 1))

    def _ask(self, signum: int, why: str, grace: float) -> None:
        """Leave, once the store has told whether the workers of other nodes have all exited with 0."""
        resources, depart = self.owner.resources, partial(self._depart, signum, why, grace)
        if self.owner.state.work is not Work.RUNNING or resources.node.config.max_nodes == 1:
            depart()
            return
        self.owner.session.ask_finished(lambda found: resources.loop.post(partial(depart, finished=found)))
        resources.loop.later(STORE_MAX_SECONDS, depart)

    def _depart(self, signum: int, why: str, grace: float, *, finished: bool = False, final: bool = False) -> None:
        """Leave. If other nodes have finished, first give the workers here a grace to finish too (rule L7).

        Args:
            why: Why a drain was requested, or what a plugin has learned; '' for a signal.
            grace: For how many seconds the workers may go on, to stop together with all others; 0 for not at all.
            final: Whether the grace to finish, or to stop together, is over.
        """
        state, loop = self.owner.state, self.owner.resources.loop
        grace = grace if state.work is Work.RUNNING else 0.0
        if not supersedes(state.leaving, grace):
            return  # it already leaves at least as soon
        told = why or f"received {signal_name(signum)}"
        busy = state.work in (Work.RUNNING, Work.STOPPING)
        again = "; once more to kill the workers at once" if busy and not why else ""
        at_last = partial(self._depart, signum, why, 0.0, final=True)
        if final or not (finished or self._finishing):
            within = f" within {grace:g} s, when all workers have stopped together" if grace else ""
            self._say(f"{told}: leaving{within}{again}")
            self.owner.step(Leaving(told, signalled(signum), grace))
            if grace:
                loop.later(grace, at_last)
        elif not self._finishing:
            self._finishing, ours = True, self.owner.resources.node.config.shutdown_timeout
            self._say(f"{told}: other nodes have finished, the workers here have {ours:g} s to{again}")
            loop.later(ours, at_last)

    def _say(self, message: str) -> None:
        self.owner.resources.node.publish(Event("signal", message))
