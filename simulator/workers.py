"""The workers of one node in one round, and the training that all nodes' workers form.

A training is *active* while every member's workers run. No two rounds may be active at once, and one must be active
again soon after each fault.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_core.incidents import Incident, IncidentKind
from elastic_core.protocol.entries import Round
from elastic_core.protocol.node_events import Checkpointed, NodeEvent, Progressed, WorkerFailed, WorkersDone
from simulator.graceful_stops import StepLoop
from simulator.peers import is_partitioned

if TYPE_CHECKING:
    from simulator.world import Host, World

CLOSED = "Connection closed by peer"
"""The message of a worker whose failure follows from the loss of a peer."""
STARTUP = 0.6
"""The most seconds until a worker is ready for its peers."""
CONNECTING = 12.0
"""Seconds for which a worker tries to reach its peers."""
COLLECTIVE_TIMEOUT = 60.0
"""Seconds after which a collective fails whose peer does not answer, with an embedded store."""
COLLECTIVE_TIMEOUT_WITH_STORE = 600.0
"""Seconds after which it fails with any other store: longer than a plan."""
FIRST_STEP = 0.8
"""Seconds from the start of training to the first report of progress."""


class State(enum.Enum):
    """State of one node's workers."""

    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"
    LEFT = "left"
    """Stopped by itself, as planned."""
    FAILED = "failed"
    GONE = "gone"


@dataclass(eq=False)
class Training:
    """The actual training of one round."""

    world: World
    run: str
    round: Round
    workers: dict[str, Worker] = field(default_factory=dict)
    broken: bool = False
    """True once a worker has stopped or failed: the round never trains again."""
    connect_failed_at: float = 0.0
    """The time at which all workers were there and could not reach each other."""
    active_at: float | None = None
    ended_at: float | None = None
    saved_at: float | None = None
    """The time of the last checkpoint."""
    step: int = 0
    stepped_at: float = 0.0
    _stepping: set[str] = field(default_factory=set)
    """Nodes whose ranks are still in the current step."""

    @property
    def active(self) -> bool:
        """True while it trains."""
        return self.active_at is not None and self.ended_at is None

    @property
    def partitioned(self) -> bool:
        """True if present members that need each other cannot reach each other."""
        return is_partitioned(self.round, {node_id: worker.host for node_id, worker in self.workers.items()})

    @property
    def is_suspended(self) -> bool:
        """True if it cannot take a step: SIGKILL waits for a worker, or a machine is suspended; it is fenced later.

        A machine whose clock was suspended too cannot know the duration: no fence by a clock holds there.
        """
        workers, since = self.workers.values(), self.world.hub.now - self.world.plan.fence_after
        return any(each.is_killed or each.host.suspended or each.host.lost_time_at > since for each in workers)

    def on_worker_ready(self, worker: Worker) -> None:
        """Record that one node's workers wait for their peers."""
        if self.broken or worker.state is not State.STARTING:
            return
        worker.state = State.RUNNING
        self.try_start()

    def try_start(self) -> None:
        """Start training, if all workers are there and reach each other."""
        members = [member.node_id for member in self.round.members]
        here = [self.workers[i] for i in members if i in self.workers and self.workers[i].state is State.RUNNING]
        if self.broken or self.active_at is not None or len(here) < len(members):
            return
        if self.partitioned:
            self.connect_failed_at = self.world.hub.now
            self.world.count("workers reach the store, not each other")
            return
        hub, random = self.world.hub, self.world.hub.random
        self.active_at = hub.now
        self.world.checker.on_training(self)
        left = self.world.work_left
        for worker in here:
            hub.at(hub.now + FIRST_STEP, worker.report_event, Progressed(self.round.number))
            hub.at(hub.now + left + self.world.plan.finish_spread * random.random(), worker.finish)
        if self.world.plan.checkpoint_interval:
            for worker in here:
                worker.report_event(Checkpointed(self.round.number, worker.host.now(), saved=False))
            hub.at(hub.now + self.world.plan.checkpoint_interval, self.save)
        if self.world.plan.step_seconds:
            self.step = self.world.step.setdefault(self.run, 0)
            self.take_step()

    def save(self) -> None:
        """Save a checkpoint, on all ranks or on rank 0; a node notices those of its own ranks."""
        world, hub = self.world, self.world.hub
        if not self.active or world.saves == world.plan.last_checkpoint > 0:
            return
        world.saves, self.saved_at = world.saves + 1, hub.now
        members = self.round.members if world.plan.seed % 2 else self.round.members[:1]
        for member in members:
            worker = self.workers[member.node_id]
            hub.at(hub.now + 0.3 * hub.random.random(), worker.save)
        hub.at(hub.now + world.plan.checkpoint_interval, self.save)

    def take_step(self) -> None:
        """Take a step: a collective of all ranks, then ``should_checkpoint()`` on each."""
        if not self.active:
            return
        hub, pace = self.world.hub, self.world.plan.step_seconds
        self.step, self.stepped_at = self.step + 1, hub.now
        for worker in self.workers.values():
            if worker.steps:
                self._stepping.add(worker.node_id)
                hub.at(hub.now + 0.5 * pace * hub.random.random(), worker.loop.call, self.step)

    def on_step_done(self, worker: Worker) -> None:
        """Record that a rank goes on to the next step."""
        self._stepping.discard(worker.node_id)
        if not self._stepping:
            hub, pace = self.world.hub, self.world.plan.step_seconds
            hub.at(hub.now + pace * (0.5 + hub.random.random()), self.take_step)

    def abort(self, why: str) -> None:
        """End the training: a member's workers are gone, and the others cannot go on."""
        if self.broken:
            return
        self.broken = True
        hub, world = self.world.hub, self.world
        if self.active:
            self._end_training()
        for worker in self.workers.values():
            if worker.state in (State.STARTING, State.RUNNING):
                blocked = COLLECTIVE_TIMEOUT if world.plan.embedded else COLLECTIVE_TIMEOUT_WITH_STORE
                wait = _peer_failure_delay(world) if world.plan.peer_loss_noticed else blocked
                what = CLOSED if world.plan.peer_loss_reported else "a peer is gone"
                hub.at(hub.now + wait, worker.fail, f"{what}: {why}")

    def on_worker_done(self) -> None:
        """Record that the first member has finished; the others finish without it."""
        if self.active:
            self._end_training()

    def _end_training(self) -> None:
        world = self.world
        self.ended_at = world.hub.now
        world.record_checkpoint(world.hub.now - (self.active_at or 0.0))
        world.checker.on_training_end(self)


def _peer_failure_delay(world: World) -> float:
    """Return the seconds from a worker's end to its peers' failure; few if they report the loss."""
    return (0.0005 if world.plan.peer_loss_reported else 0.01) + 0.5 * world.hub.random.random()


class Worker:
    """One node's workers of one round (one rank a node), and the warden's part in their end."""

    def __init__(self, host: Host, node_id: str, training: Training, report: Callable[[Worker, object], None]) -> None:
        self.host, self.node_id, self.training, self.report = host, node_id, training, report
        self.state = State.STARTING
        self.stuck = False
        """True while blocked in the kernel: no signal ends it."""
        self.is_killed = False
        """True if SIGKILL waits until the kernel releases it: it takes no step until then, and none after."""
        self.unblocked_at = -1e9
        """The time at which the kernel released it."""
        self.started_at = host.clock.now()
        self.done_at: float | None = None
        self.loop = StepLoop(self)
        world = host.world
        training.workers[node_id] = self
        if training.broken and world.plan.peer_loss_noticed:
            world.hub.at(world.hub.now + CONNECTING, self.fail, "cannot reach its peers")
        world.hub.at(world.hub.now + STARTUP * world.hub.random.random(), self._ready)
        world.hub.at(world.hub.now + CONNECTING, self._fail_without_peers)

    @property
    def alive(self) -> bool:
        """True while a process of it exists, even one that has finished."""
        return self.state is not State.GONE

    @property
    def steps(self) -> bool:
        """True while its rank is in its training loop."""
        return self.state is State.RUNNING and self.host.world.plan.step_seconds > 0

    @property
    def number(self) -> int:
        """The round's number."""
        return self.training.round.number

    def report_event(self, event: NodeEvent) -> None:
        """Report an event to the agent, while it runs."""
        if self.state is State.RUNNING:
            self._report(event)

    def save(self) -> None:
        """Report a checkpoint to the agent."""
        self.report_event(Checkpointed(self.number, self.host.now()))

    def fail(self, message: str, kind: IncidentKind = IncidentKind.WORKER_FAILED) -> None:
        """Exit with 1."""
        self._end(WorkerFailed(self.incident(message, kind)), State.FAILED, message, (State.STARTING, State.RUNNING))

    def finish(self) -> None:
        """Exit with 0."""
        if self.loop.holding and self.state is State.RUNNING:
            self.host.world.hub.at(self.host.world.hub.now + 0.5, self.finish)
        elif not self.training.broken:
            self._end(WorkersDone(), State.DONE, "", (State.RUNNING,))

    def stop_as_planned(self, event: NodeEvent) -> None:
        """Exit with 0, as planned."""
        self.host.world.step[self.training.run] = self.loop.at
        self._end(event, State.LEFT, "", (State.RUNNING,))

    def kill(self) -> None:
        """Kill every process by SIGKILL."""
        self.is_killed = self.stuck
        if self.alive and not self.stuck:
            unfinished = self.state in (State.STARTING, State.RUNNING)
            self.state = State.GONE
            if unfinished:
                self.training.abort(f"{self.node_id} was stopped")

    def unblock(self) -> None:
        """Release a worker that is blocked in the kernel."""
        if self.stuck:
            self.stuck, self.unblocked_at = False, self.host.world.hub.now
            if self.is_killed:
                self.kill()

    def incident(self, message: str, kind: IncidentKind) -> Incident:
        """Return the incident of its failure."""
        after = max(0.0, self.host.clock.now() - self.started_at)
        return Incident(
            kind=kind,
            round=self.number,
            node_id=self.node_id,
            host=self.host.name,
            after=round(after, 6),
            rank=0,
            exit_code=1,
            message=message,
            follows_peer=message.startswith(CLOSED),
        )

    def _ready(self) -> None:
        if self.host.suspended:
            self.host.deferred.append(self._ready)
        elif self.host.ports_taken:
            self.fail("the port is taken", IncidentKind.PORT_TAKEN)
        else:
            self.training.on_worker_ready(self)

    def _fail_without_peers(self) -> None:
        if self.training.active_at is None:
            self.fail("cannot reach its peers")

    def _end(self, event: NodeEvent, state: State, why: str, before: tuple[State, ...]) -> None:
        if self.state not in before:
            return
        if self.host.suspended:
            self.host.deferred.append(lambda: self._end(event, state, why, before))
            return
        self.state = state
        if state is State.DONE:
            self.done_at = self.host.world.hub.now
        self._report(event)
        if state is State.FAILED:
            self.host.world.checker.on_worker_failure(self, why)
            self.training.abort(f"{self.node_id} failed")
        else:
            self.training.on_worker_done()

    def _report(self, event: object) -> None:
        self.report(self, event)
