"""A record of what an agent has seen of its run: for events, plugins, the summary, and the node's row in the store."""

from __future__ import annotations

from dataclasses import replace

from elastic_core.agent.report import ledger_events, no_place
from elastic_core.agent.resources import Resources
from elastic_core.decision_log import Decision, DecisionLog
from elastic_core.events import Event
from elastic_core.gates import AgentState, RunSummary
from elastic_core.incidents import Incident
from elastic_core.protocol.counters import past_failures
from elastic_core.protocol.entries import Halt, HaltReason
from elastic_core.protocol.ledger import Ledger
from elastic_core.protocol.node import NodeState, row_of
from elastic_core.protocol.node_events import EntriesRead, NodeEvent
from elastic_core.protocol.roster import LocalWorkers, NodeRow, Slots
from elastic_core.session.session import Session


class Account:
    """The record of one node."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._since = resources.node.now()  # when the node's state last changed
        self._incident: Incident | None = None  # the newest failure that is known here
        self._nodes_lost = 0  # how often a round ended because nodes were lost, since this node joined
        self._no_place: Event | None = None
        self.node_log, self.leader_log = DecisionLog(), DecisionLog()

    def follow(self, before: NodeState, state: NodeState, event: NodeEvent) -> None:
        """Note what :meth:`look` returns, and publish what entries have brought; no decision depends on it."""
        halt = state.ledger.halt
        old, new = ((one.work, one.row.round, one.ledger.is_live) for one in (before, state))
        if old != new:
            self._since = self._resources.node.now()
        self._incident = state.row.incident or (halt and halt.incident) or self._incident
        if not isinstance(event, EntriesRead):
            return
        for news in ledger_events(before.ledger, event.entries, event.now, state.row.info.node_id, before.row.incident):
            self._resources.node.publish(news)
        halts = [entry.body for entry in event.entries if isinstance(entry.body, Halt)]
        self._nodes_lost += sum(halt.reason is HaltReason.NODE_LOST for halt in halts)
        self.report_no_place(state)

    def report_no_place(self, state: NodeState) -> None:
        """Publish why the job does not take this node; once for each reason."""
        why = no_place(state.ledger, state.row.info)
        if why is not None and why != self._no_place:
            self._resources.node.publish(why)
            self._no_place = why

    def look(self, state: NodeState, session: Session) -> AgentState:
        """Return what this agent does and waits for. Any thread may call this."""
        group = self._resources.group
        return AgentState(
            now=self._resources.node.now(),
            node=state,
            since=self._since,
            waits_for=session.waiting_for,
            nodes={**session.watch.nodes},
            contact_at=session.contact.at,
            failing=[*session.contact.failing],
            incident=self._incident,
            workers=[worker.view() for worker in group.workers],
            started_at=group.started_at,
            progress=group.progress.newest(),
            checkpoint=group.progress.last_checkpoint(),
        )

    def decisions(self) -> list[Decision]:
        """Return the newest decisions, those of the node before those of the leader. Any thread may call this."""
        return [*self.node_log.calls, *self.leader_log.calls]

    def summarize(self, ledger: Ledger) -> RunSummary:
        """Return what the run came to."""
        node, group = self._resources.node, self._resources.group
        return RunSummary(
            job=node.config.rdzv_id,
            run=node.run_uid,
            node=str(node.info),
            rounds=0 if ledger.round is None else ledger.round.number,
            restarts=ledger.counters.restarts,
            max_restarts=ledger.settings.agreement.max_restarts,
            nodes_lost=self._nodes_lost,
            seconds=round(ledger.age(node.now()), 1),
            interrupted_seconds=round(group.interruptions.seconds, 3),
            failures=past_failures(ledger, node.now()),
            logs=None if node.temporary else node.directory,
            stop_facts=group.stop_facts,
        )


class OwnRow:
    """The row of this node, as it was published last. All methods run on the agent's loop."""

    def __init__(self, row: NodeRow, slots: Slots, resources: Resources, session: Session) -> None:
        self._row, self._slots, self._resources, self._session = row, slots, resources, session
        self._workers: LocalWorkers | None = None  # of its round, for ``elastic status``

    def follow(self, state: NodeState) -> None:
        """Publish the row if it has changed."""
        if (row := row_of(state)) != self._row:
            if row.round != self._row.round:
                self._workers = None
            self._row = row
            self._publish()

    def look_at_slots(self) -> None:
        """Look which slots of this host are held, and publish that if one is free now (rule S8)."""
        before, self._slots = self._slots, self._resources.look()
        if not set(before.held) <= set(self._slots.held):  # other changes go with the next amendment
            self._publish()

    def describe_workers(self) -> None:
        """Publish how far the workers are, for ``elastic status``, if they have moved."""
        if (found := self._resources.group.describe_workers(*self._session.heartbeats)) is not None:
            self._workers = found
            self._publish()

    def _publish(self) -> None:
        reached = self._resources.group.progress.reached()
        self._session.publish_row(replace(self._row, slots=self._slots, workers=self._workers, reached=reached))
