"""Graceful stops: each step is a collective of all ranks, then ``should_checkpoint()`` on each rank.

A rank reports its step, *then* reads its notices, as ``elastic_core.worker.graceful_stop`` does over a socket. Checked
here: no rank passes the step of a STOP_AT, all stop at it and know whether a node leaves, no rank is halted by plan
before it has stopped, and a plan among healthy nodes never reaches its deadline.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_core.protocol.entries import Entry, Halt, HaltReason, Plan, StopAt
from elastic_core.protocol.node_events import Notice, Work, WorkersDone
from simulator import leave_rules
from simulator.health import healthy_agent

if TYPE_CHECKING:
    from simulator.replica import Replica
    from simulator.workers import Worker
    from simulator.world import World

REPORT_AHEAD = 3
"""The most steps by which a report is ahead."""


class StepLoop:
    """One node's rank in its training loop."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.world = worker, worker.host.world
        self.at = self.horizon = -1
        self.left_at: int | None = None
        self.sent: list[int] = []
        """Reports that the agent has not received yet."""
        self.notices: list[Notice | None] = []
        self.holding = False
        self._hold_until = 0.0
        self._plan = self._ignored = 0
        self._stop_at: int | None = None

    def call(self, step: int) -> None:
        """Call ``should_checkpoint(step)`` on the rank."""
        if not self.worker.steps:
            return
        if self.worker.host.suspended:
            self.worker.host.deferred.append(lambda: self.call(step))
            return
        self.at = step
        if step > self.horizon:
            self.horizon = step + self.world.hub.random.randrange(REPORT_AHEAD)
            self.sent.append(self.horizon)
            self.worker.report(self.worker, self)
        self._read_notices()

    def tell(self, notice: Notice | None) -> None:
        """Deliver a notice of the agent."""
        self.notices.append(notice)
        if self.holding:
            self.world.hub.at(self.world.hub.now, self._wake)

    def take_reports(self) -> int | None:
        """Return the newest report for the agent, if there is one."""
        sent, self.sent = self.sent, []
        return sent[-1] if sent else None

    def _wake(self) -> None:
        if not self.worker.steps or not self.holding:
            return
        if self.worker.host.suspended:
            self.worker.host.deferred.append(self._wake)
        else:
            self._read_notices()

    def _read_notices(self) -> None:
        clock = self.worker.host.clock
        for notice in self.notices:
            if notice is None:
                self.holding = False
            elif notice.step is None:
                self.world.checker.stop_plans.on_notice(self.worker)
                self._plan, self._stop_at, self.holding = notice.plan, None, True
                self._hold_until = clock.now() + notice.deadline
                self.world.hub.at(self.world.hub.now + notice.deadline / clock.rate + 0.001, self._wake)
            elif notice.plan != self._ignored:
                self._stop_at, self.holding = notice.step, False
        self.notices.clear()
        if self.holding and clock.now() < self._hold_until:
            self.world.count("PLAN a rank holds")
            return
        if self.holding:
            self.holding, self._ignored = False, self._plan
        if self._stop_at is not None and self.at >= self._stop_at:
            self.left_at = self.at
            self.world.checker.stop_plans.on_stop(self.worker, self.at)
            self.worker.stop_as_planned(WorkersDone(stepped_down=True))
        else:
            if not self.may_pass_stop():
                self.world.checker.stop_plans.on_step(self.worker, self.at)
            self.worker.training.on_step_done(self.worker)

    def may_pass_stop(self) -> bool:
        """Return True if the rank may pass the agreed step: it is being stopped, or has waited until the deadline."""
        agent = self.world.agent(self.worker.node_id)
        stopping = agent is None or agent.over or agent.state is None or agent.state.work is not Work.RUNNING
        return stopping or (self._plan != 0 and self._plan == self._ignored)


@dataclass
class StopPlans:
    """Checks of graceful stops; rounds are identified by their offers."""

    world: World
    planned: dict[str, HaltReason] = field(default_factory=dict)
    stop_at: dict[str, int] = field(default_factory=dict)

    def on_written(self, replica: Replica, entry: Entry, body: Plan | StopAt) -> None:
        """Record that a PLAN or a STOP_AT was written."""
        current = self.world.checker.histories.newest_round(replica, entry.run)
        if current is None:
            self.world.checker.fail("PLAN", f"entry {entry.index} is for no round")
            return
        if isinstance(body, Plan):
            self.world.count(f"PLAN {body.reason.value}")
            if body.reason is HaltReason.RESIZE:
                leave_rules.check_join(self.world, replica, entry)
            if current.offer.id in self.planned and not self.world.lost_data:
                self.world.checker.fail("PLAN", f"entry {entry.index} is the second for round {body.round}")
            self.planned[current.offer.id] = body.reason
            return
        self.world.count("STOP_AT")
        leave_rules.check_leaving(self.world, entry, body, current, self.planned.get(current.offer.id))
        self.stop_at[current.offer.id] = body.step
        for worker in self._workers(entry.run, replica):
            loop = worker.loop
            if loop.at >= body.step and not loop.holding and worker.steps and not loop.may_pass_stop():
                self.world.checker.fail("PLAN", f"{worker.node_id} is at {loop.at}, beyond STOP_AT {body.step}")

    def on_notice(self, worker: Worker) -> None:
        """Record that a rank receives the notice of a planned stop."""
        if worker.training.round.offer.id not in self.planned:
            self.world.checker.fail("PLAN", f"{worker.node_id} is told of a PLAN that is for no round of its")

    def on_stop(self, worker: Worker, step: int) -> None:
        """Record that a rank saves and stops."""
        agreed = self.stop_at.get(worker.training.round.offer.id)
        if step != agreed:
            self.world.checker.fail("PLAN", f"{worker.node_id} stops at {step}, and not at {agreed}")
        self.world.count("PLAN a rank stops")

    def on_step(self, worker: Worker, step: int) -> None:
        """Record that a rank continues after a step."""
        agreed = self.stop_at.get(worker.training.round.offer.id)
        if agreed is not None and step >= agreed:
            self.world.checker.fail("PLAN", f"{worker.node_id} goes on after {step}, beyond STOP_AT {agreed}")

    def on_halt(self, replica: Replica, entry: Entry, body: Halt) -> None:
        """Check a HALT after a PLAN: unless it states another reason, every rank has stopped at the agreed step."""
        current = self.world.checker.histories.newest_round(replica, entry.run)
        if current is None or current.offer.id not in self.planned:
            if body.reason is HaltReason.RESIZE:
                leave_rules.check_join(self.world, replica, entry)
            return
        workers = self._workers(entry.run, replica)
        late = "had not stopped" in body.why
        if late:
            self.world.count("PLAN comes to its deadline")
            healthy = [member for member in current.members if healthy_agent(self.world, member.node_id) is not None]
            if len(healthy) == len(current.members) and len(workers) == len(current.members):
                self.world.checker.fail("PLAN", f"all are healthy, and had not stopped: {body.why}")
        for worker in workers:
            if body.planned and not late and worker.steps:
                self.world.checker.fail("PLAN", f"{worker.node_id} is halted before it has stopped: a step is lost")
            if "lost sight of the store" in body.why and worker.loop.left_at is not None:
                self.world.checker.fail("PLAN", f"{worker.node_id} has stopped as planned, and that halts the others")
        if body.planned and not late:
            self.world.count("PLAN all have stopped together")

    def _workers(self, run: str, replica: Replica) -> list[Worker]:
        current = self.world.checker.histories.newest_round(replica, run)
        members = current.members if current is not None else ()
        return [worker for member in members if (worker := self.world.worker(run, current, member.node_id)) is not None]
