"""The job of ``simulator.spot_job`` under the shipped leader: its entries, its ledger and its decisions."""

from __future__ import annotations

from dataclasses import dataclass, field

from elastic_core.config.run import Timing
from elastic_core.protocol.entries import Body, Counters, Halt, HaltReason, Leader, Offer, Open, Round
from elastic_core.protocol.failure_detector import NodeView, Watch
from elastic_core.protocol.leader import decide
from elastic_core.protocol.leader_entries import Append, Decision
from elastic_core.protocol.leader_view import LeaderView
from elastic_core.protocol.ledger import Ledger, advance, compose, open_ledger
from elastic_core.protocol.roster import LastCheckpoint, NodeInfo, NodeRow, Phase
from elastic_core.protocol.settings import Agreement, Settings, Versions
from simulator.spot_job import FOUND_AFTER, Job, Strategy, rule

VERSIONS = Versions(python="3.11.7")
SETTINGS = Settings(
    agreement=Agreement(min_nodes=1, max_nodes=64, max_restarts=3),
    timing=Timing(last_call_timeout=0.0),
    versions=VERSIONS,
    host="node1",
)
FAR = 1e9  # when a living node is next silent


@dataclass
class LedJob(Job):
    """The job under the shipped leader.

    Args:
        strategy: Not used: the leader decides.
        known: True if the node of rank 0 notices the script's checkpoints.
    """

    strategy: Strategy = rule
    interval: float = 600.0
    known: bool = True
    ledger: Ledger | None = None
    silent_since: dict[str, float] = field(default_factory=dict)
    """The lost nodes that have a place in the newest round."""

    def _ask(self, age: float) -> None:
        self._look_at = float("inf")
        if not self.waiting or not self.members:
            return
        decision = self._decide(self.now)
        if isinstance(decision, Append):
            self._halt(decision, HaltReason.RESIZE, self.now)
            self.resizes += 1
            self._restart(0.0, set())
        else:
            at = getattr(decision, "at", None)
            self._look_at = FAR if at is None else max(at, self.now)

    def _restart(self, found_after: float, lost: set[str]) -> None:
        at = self.now + found_after
        if self.ledger is None:
            body = Open(scheduler_uid=None, settings=SETTINGS)
            self.ledger = open_ledger(compose(None, body, entry_id="e1", author="node1", now=at, run="run"), at)
        elif lost:
            self.silent_since.update(dict.fromkeys(lost, self.now))
            self._succeed(at)
            self._halt(self._decide(at), HaltReason.NODE_LOST, at)
        at += self.stop if self.ledger.halt is not None else 0.0
        sealed = self._decide(at)
        assert isinstance(sealed, Append), sealed
        assert isinstance(sealed.body, Round), sealed
        super()._restart(found_after, lost)
        assert sealed.body.group_ranks.keys() == self.members
        self.silent_since.clear()
        self._append(sealed.body, at, counters=sealed.counters)

    def _succeed(self, at: float) -> None:
        """Make another node the leader if the leader is lost."""
        assert self.ledger is not None
        if self.ledger.leader in self.silent_since:
            here = [node for node in self.ledger.round.group_ranks if node not in self.silent_since]  # type: ignore[union-attr]
            self._append(Leader(why="silent"), at, author=here[0] if here else next(iter(self.waiting)))

    def _halt(self, decision: Decision, reason: HaltReason, at: float) -> None:
        assert isinstance(decision, Append), decision
        assert isinstance(decision.body, Halt), decision
        assert decision.body.reason is reason, decision
        self._append(decision.body, at, counters=decision.counters)

    def _append(self, body: Body, at: float, *, counters: Counters | None = None, author: str = "") -> None:
        assert self.ledger is not None
        author, entry_id = author or self.ledger.leader, f"e{self.ledger.head.index + 1}"
        entry = compose(self.ledger, body, entry_id=entry_id, author=author, now=at, counters=counters)
        self.ledger = advance(self.ledger, entry, at)

    def _decide(self, at: float) -> Decision:
        assert self.ledger is not None
        members = self.ledger.round.group_ranks if self.ledger.round is not None else {}
        nodes = [*members, *(node for node in self.waiting if node not in members)]
        views = {node: self._view(node, serial) for serial, node in enumerate(nodes)}
        # Its cloud proves that a lost node is gone. If all members are, no node waits for their fence.
        watch = Watch(views, at, began_at=0.0, proven=frozenset(self.silent_since))
        return decide(LeaderView(ledger=self.ledger, watch=watch, now=at))

    def _view(self, node: str, serial: int) -> NodeView:
        """Return the leader's view of a node; a living node obeys the newest entry at once."""
        assert self.ledger is not None
        current, index = self.ledger.round, self.ledger.head.index
        number = current.number if current is not None and node in current.group_ranks else 0
        lives = node not in self.silent_since
        phase = Phase.WAITING if not number else Phase.RUNNING if self.ledger.is_live or not lives else Phase.STOPPED
        row = NodeRow(
            info=NodeInfo(
                node_id=node, host=node, host_id=node, slot=0, local_world_size=8, role="", versions=VERSIONS
            ),
            run="run",
            phase=phase,
            round=number,
            head=index if lives else 0,
            offer=Offer(node, 1, f"{node}.{index}"),
            progressed=True,
            checkpoint=self._checkpoint() if self.known and number and serial == 0 else None,
        )
        # If most nodes fall silent together they get twice the time (L1), which the model leaves out.
        silent_at = FAR if lives else self.silent_since[node] - FOUND_AFTER
        arrived_at = self.waiting.get(node, 0.0)
        return NodeView(
            row=row, serial=serial, heartbeat=1, arrived_at=arrived_at, changed_at=silent_at, seen_at=arrived_at
        )

    def _checkpoint(self) -> LastCheckpoint:
        """Return the checkpoint that the node of rank 0 reports."""
        assert self.ledger is not None
        saved = self.saved_at > self.round_at + self.start
        at = self.ledger.age(self.now) - max(0.0, self.now - self.saved_at)
        return LastCheckpoint(at, saved)
