"""The simulated worker group and warden of an agent, in place of core's own."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from elastic_core.agent.report import Interruptions
from elastic_core.incidents import Incident
from elastic_core.progress_table import ProgressTable
from elastic_core.protocol.entries import Round
from elastic_core.protocol.node_events import Checkpointed, NodeEvent, Notice, Progressed, WorkerFailed
from elastic_core.protocol.roster import LocalWorkers
from elastic_core.session.contact import FENCE_SHARE
from elastic_core.session.reader import ASKED_SHARE
from elastic_core.warden.messages import Fenced, StopCompleted, Stuck
from simulator import questions
from simulator.graceful_stops import StepLoop
from simulator.workers import State, Worker

if TYPE_CHECKING:
    from simulator.agent import SimAgent

STUCK_AFTER = 15.0
"""Seconds after SIGKILL after which the warden reports a process that does not die."""


@dataclass(frozen=True, slots=True)
class _WorkerEvent:
    """An event of the workers."""

    worker: Worker
    event: object


class SimWorkerGroup:
    """The worker group and the warden, which outlives the agent until the last worker is gone."""

    run_uid = ""
    progress = ProgressTable()
    """Empty: no output is read; the ranks' reports are in :attr:`step`."""
    workers = ()
    stop_facts: Mapping[str, Mapping[str, object]] = {}

    def __init__(self, agent: SimAgent) -> None:
        self.agent, self.host = agent, agent.host
        self.interruptions = Interruptions()
        self.worker: Worker | None = None
        self.round = questions.SimRound(agent)
        self.step: int | None = None
        """The rank's last reported step."""
        self.offer = ""
        """The offer of the newest round whose workers were started."""
        self.left_stuck = False
        """True if the agent ends because of, or beside, a process that cannot be killed."""
        self._over = False
        self._fences = 0
        self._fenced_at = 0.0
        self._fences_unseen = 0
        """Number of fences that the agent has not seen yet."""
        self._fencing = False
        """True while a fence kills workers."""
        self._started_without: float | None = None
        """The node's last contact when it started workers that its fence stops at once."""
        self._stops_requested = self._stops_completed = self._stops_seen = 0
        """Serials of the last stop that was requested, that was completed, and whose answer the agent has seen."""
        self._stops = 0
        self.stalled_until = 0.0
        """Until this instant the warden is suspended, but not its workers."""

    # The worker group, as the supervisor uses it

    def start(self, current: Round, restart_count: int) -> None:
        world = self.host.world
        world.checker.on_workers_started(self.agent, current, restart_count)
        self._over, self.offer, self.step = False, current.offer.id, None
        if self._stops_completed != self._stops_requested:
            world.checker.fail("I9", f"{self.agent.node_id} starts workers before those that it stops are gone")
        self._check_contact()
        if not self._fences_unseen:  # else whatever the agent asks for belongs to a round that is over
            self.worker = Worker(self.host, self.agent.node_id, world.training(self.agent.run, current), self._report)

    def _check_contact(self) -> None:
        """S4: no node starts workers that its fence stops at once, unless a newer entry, read or not, ends that round.

        A node that is frozen may, if it had half of the fence's time left when it read the newest entry. With stale
        reads, a node may lose contact between its row and the round, but not twice without contact.
        """
        assert self.agent.supervisor is not None
        session, world = self.agent.supervisor.session, self.host.world
        known_at, ledger, fence = session.contact.known_at, session.ledger, FENCE_SHARE * world.plan.fence_after
        had_contact = ledger.head_at - known_at < ASKED_SHARE * fence or self.host.clock.now() - known_at < fence
        if had_contact or ledger.halt is not None or ledger.head.index < world.store.master.head:
            return
        if not world.store.stale_reads or self._started_without == known_at:
            world.checker.fail("S4", f"{self.agent.node_id} starts workers, and its fence stops them at once")
        self._started_without = known_at

    def alive(self) -> bool:
        return self.worker is not None and self.worker.state in (State.STARTING, State.RUNNING)

    def handle(self, event: object) -> NodeEvent | None:
        if not isinstance(event, _WorkerEvent) or event.worker is not self.worker:
            return None
        if isinstance(event.event, StepLoop):
            first = self.step is None
            self._take_steps(event.worker)
            return Progressed(event.worker.number, takes_notices=True) if first and self.step is not None else None
        if isinstance(event.event, WorkerFailed):
            if self._over:
                return None
            self._over = True
            self.host.world.checker.on_incident(self.agent, event.event.incident)
        return cast("NodeEvent", event.event)

    def notify(self, notice: Notice | None) -> tuple[int, ...] | None:
        """Write the notice, *then* take the reports."""
        worker = self.worker
        if worker is None:
            return None
        worker.loop.tell(notice)
        if notice is None or notice.step is not None:
            return None
        self._take_steps(worker)
        return None if self.step is None else (self.step,)

    def _take_steps(self, worker: Worker) -> None:
        step = worker.loop.take_reports()
        self.step = self.step if step is None else step

    def stop(
        self, grace: float, *, broken: bool = False, failure: Incident | None = None, signum: int = signal.SIGTERM
    ) -> None:
        self._over = True
        self._stops_requested += 1
        self._stop(grace)

    def early_exit(self, failure: Incident | None) -> None:
        """Return None: a node has one worker, and has finished once that has exited with 0."""

    def finish_round(self, failure: Incident | None = None) -> int:
        if self.worker is not None and self.worker.stuck:
            self.host.world.checker.fail("I9", f"{self.agent.node_id} takes a stuck worker for gone")
        self.worker = None
        return 0

    def describe_workers(self, heartbeat: int, store: float) -> LocalWorkers | None:
        """Return a new value each time, so that the row is amended; no decision depends on it."""
        return LocalWorkers(heartbeat=heartbeat, pids=(1,), steps=(self.step,), seconds=(0.0,), store=store)

    def error_record(self, incident: Incident | None) -> None:
        """Return None: no worker writes an error file."""

    def note_next_round(self) -> None:
        """Do nothing: no time is measured."""

    # The warden

    def finish(self, seconds: float) -> Sequence[object]:
        """Return no events: successful workers leave no processes."""
        return ()

    def fence(self, seconds: float | None) -> None:
        """Set the dead-man's switch (rule S4) by the host's clock."""
        self._fences += 1
        if seconds is not None:
            clock = self.host.clock
            self._fenced_at = clock.now() + seconds
            self.host.world.hub.at(self.host.world.hub.now + seconds / clock.rate, self._fence_due, self._fences)

    def _fence_due(self, number: int) -> None:
        if number != self._fences or self.agent.process.dead:
            return
        if self.host.suspended:
            self.host.deferred.append(lambda: self._fence_due(number))
        elif self.stalled_until > self.host.world.hub.now:
            self.host.world.hub.at(self.stalled_until, self._fence_due, number)
        elif (left := self._fenced_at - self.host.clock.now()) > 1e-9:
            self.host.world.hub.at(self.host.world.hub.now + left / self.host.clock.rate, self._fence_due, number)
        else:
            self.host.world.count("S4 a node without contact is fenced")
            self._over = True
            if not self._fencing:
                self._fencing, self._fences_unseen = True, self._fences_unseen + 1
            self._stop(0.2)

    def is_over(self, event: StopCompleted | Fenced) -> bool:
        if isinstance(event, Fenced):
            self._fences_unseen -= 1
        elif event.serial == self._stops_requested:
            self._stops_seen = self._stops_requested
        return self._stops_seen == self._stops_requested

    def wake(self) -> None:
        """Do nothing: the simulated warden never sleeps."""

    def kill(self) -> None:
        """Kill all processes now."""
        self._stop(0.0)

    def close(self, timeout: float) -> None:
        """Kill all processes, and wait for the last one."""
        if self.worker is not None:
            self.left_stuck = self.left_stuck or self.worker.stuck
            self.worker.kill()
            if not self.worker.alive:
                self.worker = None
                self.host.release_slot(self.agent)

    def on_agent_exit(self) -> None:
        """Kill the workers, as a warden does once its agent is gone."""
        if self.worker is not None and self.worker.stuck:
            self.host.world.hub.at(self.host.world.hub.now + 1.0, self.on_agent_exit)
        elif self.host.suspended:
            self.host.deferred.append(self.on_agent_exit)
        elif self.stalled_until > self.host.world.hub.now:
            self.host.world.hub.at(self.stalled_until, self.on_agent_exit)
        else:
            if self.worker is not None:
                self.worker.kill()
            self.worker = None
            self.host.release_slot(self.agent)

    def _stop(self, grace: float) -> None:
        world = self.host.world
        self._stops += 1
        took = min(grace, world.plan.latency + 2.0 * world.hub.random.random() ** 3)
        world.hub.at(world.hub.now + took, self._stopped, self._stops)

    def _stopped(self, number: int) -> None:
        worker = self.worker
        if number != self._stops or self.agent.process.dead:
            return
        if self.host.suspended:
            self.host.deferred.append(lambda: self._stopped(number))
        elif self.stalled_until > self.host.world.hub.now:
            self.host.world.hub.at(self.stalled_until, self._stopped, number)
        elif worker is not None and worker.stuck:
            worker.kill()
            self.host.world.hub.at(self.host.world.hub.now + STUCK_AFTER, self._report_stuck, number)
        else:
            if worker is not None:
                worker.kill()
            if self._fencing:
                self._fencing = False
                self.agent.inbox.post(Fenced())
            if self._stops_completed != self._stops_requested:
                self._stops_completed = self._stops_requested
                self.agent.inbox.post(StopCompleted(self._stops_requested))

    def _report_stuck(self, number: int) -> None:
        if self.worker is not None and self.worker.stuck:
            self.host.world.count("L3 a worker in D state")
            self.left_stuck = True  # also where the agent hears it late, and it is free by then
            self.agent.inbox.post(Stuck(7, "train", "nfs_wait"))
        else:
            self._stopped(number)

    def _report(self, worker: Worker, event: object) -> None:
        if not self.agent.process.dead:
            self.agent.inbox.post(event if isinstance(event, Checkpointed) else _WorkerEvent(worker, event))
