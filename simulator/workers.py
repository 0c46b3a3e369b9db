"""What agents start: the workers of one node in one round, and the training that they are only together.

A training is *whole* while every member's workers run. This is what must never be true of two
rounds at once, and what must be true again soon after everything that happened.
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
"""What a worker says that follows from the loss of a peer, where it says so."""
STARTUP = 0.6
"""Seconds until a worker is ready for its peers, at most."""
CONNECTING = 12.0
"""Seconds that a worker tries to reach its peers before it fails."""
COLLECTIVE_TIMEOUT = 60.0
"""Seconds after which a collective that a peer does not answer fails by itself, where workers notice nothing sooner."""
COLLECTIVE_TIMEOUT_WITH_STORE = 600.0
"""The same where there is a store: nobody waits for that long."""
FIRST_STEP = 0.8
"""Seconds from then to the first report of progress."""


class State(enum.Enum):
    """Of one node's workers."""

    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"
    LEFT = "left"
    """Stopped by itself, as it was told."""
    FAILED = "failed"
    GONE = "gone"


@dataclass(eq=False)
class Training:
    """One round as it really is. Who is asked to train together, and whether they do."""

    world: World
    run: str
    round: Round
    workers: dict[str, Worker] = field(default_factory=dict)
    broken: bool = False
    """Somebody stopped or failed: this round will never be whole again."""
    connect_failed_at: float = 0.0
    """When all were there and could not reach each other."""
    active_at: float | None = None
    ended_at: float | None = None
    saved_at: float | None = None
    """When its script last saved a checkpoint."""
    step: int = 0
    stepped_at: float = 0.0
    _stepping: set[str] = field(default_factory=set)
    """The nodes whose ranks have not returned from the step."""

    @property
    def active(self) -> bool:
        """Whether it trains right now."""
        return self.active_at is not None and self.ended_at is None

    @property
    def partitioned(self) -> bool:
        """Whether some of the members that are here do not reach others that they have to."""
        return is_partitioned(self.round, {node_id: worker.host for node_id, worker in self.workers.items()})

    @property
    def is_suspended(self) -> bool:
        """Whether it cannot take a step, since a whole machine stands still; it is fenced when that goes on.

        A machine whose clock stood still with it cannot know how long that was: no fence by a clock holds there.
        """
        now, fence = self.world.hub.now, self.world.plan.fence_after
        return any(worker.host.suspended or now - worker.host.lost_time_at < fence for worker in self.workers.values())

    def on_worker_ready(self, worker: Worker) -> None:
        """One node's workers wait for their peers."""
        if self.broken or worker.state is not State.STARTING:
            return
        worker.state = State.RUNNING
        self.try_start()

    def try_start(self) -> None:
        """Begin, if all are there and reach each other."""
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
            hub.at(hub.now + left + self.world.plan.spread * random.random(), worker.finish)
        if self.world.plan.saves:
            for worker in here:
                worker.report_event(Checkpointed(self.round.number, worker.host.now(), saved=False))
            hub.at(hub.now + self.world.plan.saves, self.save)
        if self.world.plan.pace:
            self.step = self.world.step.setdefault(self.run, 0)
            self.take_step()

    def save(self) -> None:
        """Save a checkpoint: all ranks do, or rank 0 does; a node notices what its own ranks save."""
        world, hub = self.world, self.world.hub
        if not self.active or world.saves == world.plan.last_save > 0:
            return
        world.saves, self.saved_at = world.saves + 1, hub.now
        members = self.round.members if world.plan.noise % 2 else self.round.members[:1]
        for member in members:
            worker = self.workers[member.node_id]
            hub.at(hub.now + 0.3 * hub.random.random(), worker.save)
        hub.at(hub.now + world.plan.saves, self.save)

    def take_step(self) -> None:
        """Take a step: a collective of all, then each rank asks whether to stop."""
        if not self.active:
            return
        hub, pace = self.world.hub, self.world.plan.pace
        self.step, self.stepped_at = self.step + 1, hub.now
        for worker in self.workers.values():
            if worker.steps:
                self._stepping.add(worker.node_id)
                hub.at(hub.now + 0.5 * pace * hub.random.random(), worker.loop.call, self.step)

    def on_step_done(self, worker: Worker) -> None:
        """Record that a rank goes on to the next step."""
        self._stepping.discard(worker.node_id)
        if not self._stepping:
            hub, pace = self.world.hub, self.world.plan.pace
            hub.at(hub.now + pace * (0.5 + hub.random.random()), self.take_step)

    def abort(self, why: str) -> None:
        """Break the training: a member's workers are no more, and the rest cannot go on."""
        if self.broken:
            return
        self.broken = True
        hub, world = self.world.hub, self.world
        if self.active:
            self._end_training()
        for worker in self.workers.values():
            if worker.state in (State.STARTING, State.RUNNING):
                blocked = COLLECTIVE_TIMEOUT if world.plan.embedded else COLLECTIVE_TIMEOUT_WITH_STORE
                wait = _peer_failure_delay(world) if world.plan.peers_notice else blocked
                what = CLOSED if world.plan.peers_tell else "a peer is gone"
                hub.at(hub.now + wait, worker.fail, f"{what}: {why}")

    def on_worker_done(self) -> None:
        """Record that the first member has done its part: what the others still do, they do without it."""
        if self.active:
            self._end_training()

    def _end_training(self) -> None:
        world = self.world
        self.ended_at = world.hub.now
        world.record_checkpoint(world.hub.now - (self.active_at or 0.0))
        world.checker.on_training_end(self)


def _peer_failure_delay(world: World) -> float:
    """Seconds from the end of a worker to its peers' failure; at once where they tell why."""
    return (0.0005 if world.plan.peers_tell else 0.01) + 0.5 * world.hub.random.random()


class Worker:
    """One node's workers of one round, and their warden's part in their end."""

    def __init__(self, host: Host, node_id: str, training: Training, report: Callable[[Worker, object], None]) -> None:
        self.host, self.node_id, self.training, self.report = host, node_id, training, report
        self.state = State.STARTING
        self.stuck = False
        """In the kernel: no signal ends it."""
        self.unblocked_at = -1e9
        """When it came back from there, and met the signals that had been sent."""
        self.started_at = host.clock.now()
        self.done_at: float | None = None
        self.loop = StepLoop(self)
        world = host.world
        training.workers[node_id] = self
        if training.broken and world.plan.peers_notice:
            world.hub.at(world.hub.now + CONNECTING, self.fail, "cannot reach its peers")
        world.hub.at(world.hub.now + STARTUP * world.hub.random.random(), self._ready)
        world.hub.at(world.hub.now + CONNECTING, self._fail_without_peers)

    @property
    def alive(self) -> bool:
        """Whether a process of it is there, be it one that has nothing left to do."""
        return self.state is not State.GONE

    @property
    def steps(self) -> bool:
        """Whether its rank is in its loop."""
        return self.state is State.RUNNING and self.host.world.plan.pace > 0

    @property
    def number(self) -> int:
        """The round's number."""
        return self.training.round.number

    def report_event(self, event: NodeEvent) -> None:
        """Let the agent know, unless it is too late for that."""
        if self.state is State.RUNNING:
            self._report(event)

    def save(self) -> None:
        """Let the agent notice a checkpoint."""
        self.report_event(Checkpointed(self.number, self.host.now()))

    def fail(self, message: str, kind: IncidentKind = IncidentKind.WORKER_FAILED) -> None:
        """Let a worker exit with 1."""
        self._end(WorkerFailed(self.incident(message, kind)), State.FAILED, message, (State.STARTING, State.RUNNING))

    def finish(self) -> None:
        """Every worker exits with 0."""
        if self.loop.holding and self.state is State.RUNNING:
            self.host.world.hub.at(self.host.world.hub.now + 0.5, self.finish)
        elif not self.training.broken:
            self._end(WorkersDone(), State.DONE, "", (State.RUNNING,))

    def stop_as_planned(self, event: NodeEvent) -> None:
        """Every worker exits with 0, because it was told to stop."""
        self.host.world.step[self.training.run] = self.loop.at
        self._end(event, State.LEFT, "", (State.RUNNING,))

    def kill(self) -> None:
        """SIGKILL to every process, at once."""
        if self.alive and not self.stuck:
            unfinished = self.state in (State.STARTING, State.RUNNING)
            self.state = State.GONE
            if unfinished:
                self.training.abort(f"{self.node_id} was stopped")

    def unblock(self) -> None:
        """Bring a worker back from the kernel, if it was there."""
        if self.stuck:
            self.stuck, self.unblocked_at = False, self.host.world.hub.now

    def incident(self, message: str, kind: IncidentKind) -> Incident:
        """Return the incident that its failure is."""
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
