"""The simulation's ground truth, and the invariants that it checks.

The invariants are those of ``docs/internals/protocol.md``: I1 to I13, S1 and S4; I10 is in ``forgeries``. Checkpoints
(I6, I7) and samples (I8) are not the rendezvous's, with one exception, checked as I6: no step of a round is trained
after one of a later round. The fencing of checkpoints by their rounds depends on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from elastic_core.incidents import Incident, IncidentKind
from elastic_core.protocol.entries import (
    Answers,
    Closed,
    Drain,
    Entry,
    Halt,
    HaltReason,
    Leader,
    Open,
    Over,
    Plan,
    Question,
    Resume,
    Round,
    StopAt,
)
from elastic_core.protocol.ledger import Ledger, stands_on
from elastic_core.protocol.roster import Phase
from simulator import (
    data_loss,
    finish_coverage,
    health_checks,
    leaders,
    leave_rules,
    programs,
    questions,
    reachability,
    round_sizes,
    rules,
    verdicts,
)
from simulator.assumptions import ASSUMPTIONS
from simulator.departures import Departures
from simulator.entry_text import describe, kind_of
from simulator.forgeries import Forgeries
from simulator.graceful_stops import StopPlans
from simulator.histories import Histories
from simulator.proofs import Proofs
from simulator.verdicts import Judgement

if TYPE_CHECKING:
    from simulator.agent import SimAgent
    from simulator.replica import Replica
    from simulator.workers import Training, Worker
    from simulator.world import World


@dataclass(frozen=True)
class Violation:
    """An invariant or rule that did not hold."""

    name: str
    at: float
    what: str

    def __str__(self) -> str:
        return f"{self.name} at {self.at:.3f} s: {self.what}"


@dataclass
class _Node:
    """The checker's record of one agent."""

    newest: Round | None = None
    started: Round | None = None
    served: set[str] = field(default_factory=set)
    """The offers of the rounds whose workers it has started."""
    closed: Closed | None = None
    finished: int = 0
    """The round that its workers have finished, as the node reports it, until others are started."""


@dataclass
class Checker:
    """Observer of the whole world, which checks the invariants and calls the checks of rules."""

    world: World
    violations: list[Violation] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    """Suspended invariants that did not hold, with the first instance of each."""
    active_trainings: dict[int, Training] = field(default_factory=dict)
    rounds: list[Entry] = field(default_factory=list)
    """Every ROUND that was written, in order."""
    verdicts: list[Entry] = field(default_factory=list)
    leaders: int = 0
    """Number of LEADER entries."""
    _nodes: dict[str, _Node] = field(default_factory=dict)
    histories: Histories = field(default_factory=Histories)
    judged: dict[tuple[str, str], Judgement] = field(default_factory=dict)
    """The last question of a leader to its policies, by its node id and the offer of the round."""
    _ranks: dict[tuple[str, int], str] = field(default_factory=dict)
    _agreed: dict[str, object] = field(default_factory=dict)
    resized_at: dict[str, float] = field(default_factory=dict)
    """The end of the last planned resize of each run."""
    halted_at: dict[str, float] = field(default_factory=dict)
    """The time of each HALT, by the entry's id."""
    uncharged: set[str] = field(default_factory=set)
    """Rounds, by their offers, with a failure that spends no restart."""
    joined_at: dict[str, int] = field(default_factory=dict)
    """Index of the newest entry that each node had read when it joined."""
    heartbeats: dict[str, int] = field(default_factory=dict)
    """The heartbeat of each node when its workers last finished."""
    _failures: Counter[str] = field(default_factory=Counter)
    _failed_rounds: set[str] = field(default_factory=set)
    _trained: dict[str, list[Round]] = field(default_factory=dict)
    """Every round of a run that has trained."""

    def __post_init__(self) -> None:
        self.stop_plans = StopPlans(self.world)
        self.proofs = Proofs(self.world)
        self.departures = Departures(self.world)
        self.forgeries = Forgeries(self.world)

    def fail(self, name: str, what: str) -> None:
        """Record a violation, which ends the plan, unless the plan's profile suspends the invariant."""
        assumption = ASSUMPTIONS.get(self.world.plan.profile)
        if assumption is not None and (item := assumption.suspended(name, what)):
            self.broken.setdefault(item, f"{self.world.hub.now:.3f} s: {what}")
            self.world.note("suspended", f"{name}: {what}")
            return
        self.violations.append(Violation(name, self.world.hub.now, what))
        self.world.note("violation", f"{name}: {what}")

    # The ledger ------------------------------------------------------------------------------------------------------

    def on_append(self, replica: Replica, data: Any) -> None:
        """Record that an entry was written."""
        entry: Entry = data.value
        if entry.id in self.histories.written:
            self.world.count("S3 an entry is put back")
            self.world.note("store", f"has entry {entry.index} again: {describe(entry)}")
            return
        before = self.histories.add(replica, entry)
        self.world.note(entry.author, f"writes entry {entry.index}, term {entry.term}: {describe(entry)}")
        self.proofs.on_append(entry)
        programs.check_undisturbed(self.world, entry)
        self.forgeries.check_rows(self.world.agent(entry.author))
        if before is not None:
            self._check_order(before, entry)
        match entry.body:
            case Resume() as body:
                data_loss.check_resume(self.world, replica, before, entry, body)
                self.world.count("S3 RESUME of a round that is over" if body.over else "S3 RESUME")
            case Round() as body:
                self._check_round(replica, entry, body, before)
            case Halt() as body:
                self.halted_at[entry.id] = self.world.hub.now
                self.world.count(f"HALT {body.reason.value}")
                rules.check_halt(self.world, replica, entry, body)
                leaders.expect_end(self.world, replica, entry)
                self.proofs.expect_end(replica, entry)
                self.stop_plans.on_halt(replica, entry, body)
            case Plan() | StopAt() as body:
                self.stop_plans.on_written(replica, entry, body)
            case Over():
                self.world.count("OVER")
            case Drain() as body:
                self.world.count("DRAIN")
                health_checks.note_drain(self.world, body)
            case Question() | Answers() as body:
                questions.check(self.world, entry, body)
            case Leader() as body:
                kind = kind_of(body.why)
                self.world.count("LEADER " + kind)
                self.leaders += 1
                rules.check_leader(self.world, before, entry, kind)
            case Closed() as body:
                self.verdicts.append(entry)
                self.world.count(f"CLOSED {body.exit_code}")
                rules.check_closed(self.world, replica, entry, body)
            case Open():
                self.world.count("OPEN" if before is None else "OPEN of the next run")

    def on_shrink(self, replica: Replica, index: int) -> None:
        """Record that an entry became a tombstone."""
        self.world.count("an entry is shrunk")
        head = self.histories.newest(replica)
        assert head is not None  # the node that shrinks an entry has read a newer one
        if index in stands_on(head):
            self.fail("tombstones", f"entry {index} is shrunk, and entry {head.index} stands on it")
        rows = [rules.row_of(replica, node_id) for node_id in replica.rows]
        late = {row.info.node_id for row in rows if row is not None and row.run == head.run and row.head < index}
        late &= {row.info.node_id for row in leave_rules.read_before(self.world, f"shrink {index}", head.run)}
        if late and not self.world.lost_data:
            self.fail("tombstones", f"entry {index} is shrunk, and {', '.join(sorted(late))} may not have read it")

    def _check_order(self, before: Entry, entry: Entry) -> None:
        if isinstance(entry.body, Resume):
            return
        if isinstance(entry.body, Open):
            if not isinstance(before.body, Closed):
                self.fail("I12", f"{entry.author} opens a run upon one that is not closed")
            return
        if isinstance(before.body, Closed):
            self.fail("I12", f"{entry.author} goes on after CLOSED")
        if not isinstance(entry.body, Leader) and (entry.author, entry.term) != (before.leader, before.term):
            self.fail("S1", f"{entry.author} (term {entry.term}) decides; the leader is {before.leader}")
        if isinstance(entry.body, Leader) and entry.term != before.term + 1:
            self.fail("S1", f"a LEADER of term {entry.term} follows term {before.term}")

    def _check_round(self, replica: Replica, entry: Entry, body: Round, before: Entry | None) -> None:
        plan, earlier = self.world.plan, self.histories.newest_round(replica, entry.run, skip=1)
        served = self.histories.rounds.get(body.offer.id)
        members = self.histories.add_round(entry, body, earlier).members
        if served not in (None, self.histories.rounds[body.offer.id]) and data_loss.was_served(
            self.world, replica, body.offer.id
        ):
            self.fail("I2", f"round {body.number} is given a store that served before")
        rules.check_slots(self.world, before, entry, body, earlier)
        reachability.check_seal(self.world, before, entry, replace(body, members=members), earlier)
        ids = [member.node_id for member in members]
        if len(set(ids)) != len(ids) or not plan.min_nodes <= len(ids) <= plan.max_nodes:
            self.fail("I3", f"round {body.number} of {ids}, with {plan.min_nodes} to {plan.max_nodes} nodes")
        if not body.same_as:
            round_sizes.check_round(self.world, entry, {*ids}, earlier)
        if earlier is not None:
            if body.number <= earlier.number:
                self.fail("I4", f"round {body.number} follows round {earlier.number}")
            for training in self.active_trainings.values():
                if training.run != entry.run or training.is_suspended or self.proofs.check_overlap(entry, training):
                    continue
                if not data_loss.may_be_unaware(self.world, training):
                    self.fail("S4", f"round {body.number} is sealed while round {training.round.number} trains")
        else:
            data_loss.check_first(self.world, replica, entry)
        if before is not None and isinstance(before.body, Halt) and before.body.reason is HaltReason.RESIZE:
            self.resized_at[entry.run] = self.world.hub.now
        verdicts.check_round(self.world, entry, body, before, earlier)
        self.rounds.append(entry)
        self.world.count("ROUND same members" if body.same_as else "ROUND")
        self._check_restarts(entry, earlier, replace(body, members=members), before)

    def _check_restarts(self, entry: Entry, earlier: Round | None, body: Round, before: Entry | None) -> None:
        spent, most = entry.counters.restarts, self.world.plan.max_restarts
        if not 0 <= spent <= most:
            self.fail("I13", f"{spent} restarts are spent, of {most}")
        if spent > self._failures[entry.run]:
            failed = self._failures[entry.run]
            self.fail("I13", f"{spent} restarts are spent, but only {failed} round(s) failed by a worker")
        if body.charged:
            self.world.count("a restart is spent")
        if earlier is None or before is None:
            return
        blamed = before.body.incident if isinstance(before.body, Halt) else None
        failure = body.same_as or (blamed is not None and blamed.kind is IncidentKind.WORKER_FAILED)
        known = earlier.offer.id in self._failed_rounds and earlier.offer.id not in self.uncharged
        if failure and known and body.members == earlier.members and spent != before.counters.restarts + 1:
            self.fail("I13", f"a failure of round {earlier.number} spends no restart")
        finish_coverage.note_restart(self.world, entry, body, earlier)
        if spent < before.counters.restarts:
            self.world.count("a restart is given back")

    # Nodes -----------------------------------------------------------------------------------------------------------

    def on_join(self, agent: SimAgent, ledger: Ledger) -> None:
        """Record that an agent has joined."""
        node = self._node(agent)
        node.newest = ledger.round
        self.joined_at[agent.node_id] = ledger.head.index
        self.forgeries.check_read(agent, ledger.head)
        rules.check_joined(self.world, agent, ledger)
        self.world.note(agent.node_id, f"has joined run {ledger.head.run} at entry {ledger.head.index}")

    def on_verdict_report(self, agent: SimAgent, closed: Closed) -> None:
        """Record that an agent that has not joined reports a verdict."""
        rules.check_reported(self.world, agent, closed)

    def on_read(self, agent: SimAgent, entries: Sequence[Entry]) -> None:
        """Record that an agent's loop receives entries."""
        node = self._node(agent)
        for entry in entries:
            self.forgeries.check_read(agent, entry)
            if node.closed is None and isinstance(entry.body, Round):
                node.newest = self.histories.resolved[entry.id]
            elif node.closed is None and isinstance(entry.body, Closed):
                node.closed = entry.body
        rules.check_ledger_obeyed(self.world, agent)
        leave_rules.check_drain_obeyed(self.world, agent, entries)
        if self.world.trace is not None and entries:
            self.world.note(agent.node_id, f"reads entry {', '.join(str(entry.index) for entry in entries)}")

    def on_history_replaced(self, agent: SimAgent, ledger: Ledger) -> None:
        """Record that an agent's loop receives another history and the outcome of its run."""
        node = self._node(agent)
        node.newest = ledger.round
        if node.closed is None:
            node.closed = ledger.closed
        rules.check_ledger_obeyed(self.world, agent)
        self.world.count("S3 another history is adopted" if self.world.lost_data else "over entries that were shrunk")
        self.world.note(agent.node_id, f"goes on from entry {ledger.head.index} in epoch {ledger.head.epoch}")

    def on_workers_started(self, agent: SimAgent, current: Round, restart_count: int) -> None:
        """Record that an agent starts workers."""
        node, who = self._node(agent), agent.node_id
        self.world.note(who, f"starts workers of round {current.number}, restart count {restart_count}")
        sealed = self.histories.rounds.get(current.offer.id)
        if sealed is None:
            self.fail("I11", f"{who} starts round {current.number}, which no node has written")
        elif not self.histories.was_written(current):
            self.fail("I2", f"{who} starts another round {current.number} than was written")
        if node.newest is not None and self._follows(agent.run, node.newest, current):
            self.fail("I5", f"{who} starts round {current.number} after it has read of {node.newest.number}")
        if node.started is not None and self._follows(agent.run, node.started, current):
            self.fail("I4", f"{who} starts round {current.number} after {node.started.number}")
        if node.closed is not None:
            self.fail("I12", f"{who} starts round {current.number} after it has read CLOSED")
        if agent.group.worker is not None and agent.group.worker.alive:
            self.fail("I9", f"{who} starts round {current.number} while {agent.group.worker.number} is there")
        if current.offer.id in node.served:
            self.fail("I4", f"{who} starts round {current.number} once more")
        node.started, node.finished = current, 0
        node.served.add(current.offer.id)
        # Two histories of a run may have a round of one number each; a place serves one round all the same.
        key = f"{current.offer.id} {current.members}" if self.world.lost_data else f"{agent.run} {current.number}"
        if self._agreed.setdefault(key, (current.members, current.offer)) != (current.members, current.offer):
            self.fail("I2", f"{who} has other members of round {current.number} than another node")
        rank = [member.node_id for member in current.members].index(who)
        if self._ranks.setdefault((key, rank), who) != who:
            self.fail("I1", f"rank {rank} of round {current.number} belongs to two nodes")

    def _follows(self, run: str, later: Round, current: Round) -> bool:
        """Return True if ``later`` comes after ``current``; where a run has two histories, in one of them."""
        if run in self.histories.forked:
            return self.histories.follows(later, current)
        return later.number > current.number

    def on_workers_done(self, agent: SimAgent) -> None:
        """Record that an agent has learnt that all its workers exited with 0."""
        if (state := agent.state) is not None and state.row.phase is Phase.FINISHED:
            self._node(agent).finished = state.row.round
            self.heartbeats[agent.node_id] = finish_coverage.heartbeat_of(agent.host.channel.replica, agent.node_id)

    def on_events_handled(self, agent: SimAgent) -> None:
        """Record that an agent has handled all its events."""
        if agent.state is not None:
            leave_rules.check_finish_kept(self.world, agent, self._node(agent).finished)
            leave_rules.check_leaver_exits(self.world, agent)

    def on_worker_failure(self, worker: Worker, why: str) -> None:
        """Record that a worker exited with 1."""
        self.world.note(worker.node_id, f"a worker of round {worker.number} fails: {why}")

    def on_incident(self, agent: SimAgent, incident: Incident) -> None:
        """Record that an agent reports a failure."""
        offer = agent.group.offer
        if incident.kind is not IncidentKind.WORKER_FAILED:
            self.uncharged.add(offer)
        elif offer not in self._failed_rounds:
            self._failed_rounds.add(offer)
            self._failures[agent.run] += 1

    def on_exit(self, agent: SimAgent, code: int, why: str) -> None:
        """Record that an agent has ended by itself."""
        self.world.note(agent.node_id, f"exits with {code}: {why}")
        self.world.coverage[f"exit {code}"] += 1
        rules.check_exit(self.world, agent, why)
        programs.note_exit(self.world, agent, code)
        self.departures.on_exit(agent)
        closed = self._node(agent).closed
        if closed is None or agent.state is None or agent.leaving or why.startswith("process "):
            return
        if code != closed.exit_code and agent.state.ledger.closed is not None:
            self.fail("I12", f"{agent.node_id} exits with {code}, the verdict was {closed.exit_code}")

    # Trainings -------------------------------------------------------------------------------------------------------

    def on_training(self, training: Training) -> None:
        """Record that all workers of a round train from now on."""
        number = training.round.number
        self.world.note("training", f"round {number} trains")
        misled = self._began_late(training)
        for other in self.active_trainings.values():
            if self.world.lost_data:
                data_loss.check_overlap_known(self.world, training, other)
            elif misled:
                continue
            elif other.run == training.run and not other.is_suspended and not self.proofs.may_overlap(other):
                self.fail("S4", f"round {number} trains while round {other.round.number} does")
            elif other.run != training.run:
                self.world.count("two runs train at once")
        trained = self._trained.setdefault(training.run, [])
        for later in trained:
            if self.histories.follows(later, training.round) and not misled:
                self.fail("I6", f"round {number} trains after round {later.number} did")
        trained.append(training.round)
        self.active_trainings[id(training)] = training

    def _began_late(self, training: Training) -> bool:
        """S4: return True if a newer round was sealed before this one began to train, since its member seemed gone."""
        offers = self.histories.rounds
        newer = (
            entry
            for entry in self.rounds
            if isinstance(entry.body, Round) and self.histories.follows(offers[entry.body.offer.id], training.round)
        )
        sealed = None if self.world.lost_data else next(newer, None)
        return sealed is not None and sealed.run == training.run and self.proofs.check_overlap(sealed, training)

    def on_machine_resumed(self) -> None:
        """Check a moment after a machine has resumed: it must not train beside another round."""
        trainings = self.active_trainings.values()
        runs = Counter(one.run for one in trainings if not one.is_suspended and not self.proofs.may_overlap(one))
        for run, count in runs.items():
            if count > 1 and not self.world.lost_data:
                self.fail("S4", f"{count} rounds of run {run} train at once, since a machine has gone on")

    def on_training_end(self, training: Training) -> None:
        """Record that a training is broken or complete."""
        self.world.note("training", f"round {training.round.number} trains no more")
        self.active_trainings.pop(id(training), None)
        self.proofs.on_training_end(training)

    def _node(self, agent: SimAgent) -> _Node:
        return self._nodes.setdefault(agent.node_id, _Node())
