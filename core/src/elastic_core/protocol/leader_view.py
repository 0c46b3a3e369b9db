"""All that the leader knows, and the questions that it asks of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from elastic_core.config.run import Timing
from elastic_core.incidents import Incident, Verdict, by_cause, follows_peer_loss
from elastic_core.protocol.failure_detector import NodeView, Watch, is_lost, is_proved_gone, silence_deadline
from elastic_core.protocol.ledger import HaltReason, Ledger, Resume, Round
from elastic_core.protocol.limits import list_names
from elastic_core.protocol.roster import Phase
from elastic_core.protocol.settings import Agreement

SUSPICION_SECONDS = 1.0
"""Seconds after which a node that has not shown that it saw an entry is suspected, at least (rule L2)."""
SUSPICION_FACTOR = 3.0
"""… or this many times the worst delay that the job has known, if that is longer."""
CAUSE_PATIENCE_SECONDS = 0.1
"""For how long a round whose reported failures all follow from a peer's loss waits for the report of that."""
LAST_CHANCE_SECONDS = 0.1
"""Seconds that one whose silence has already had consequences has left to show that it is there."""


def patience(ledger: Ledger) -> float:
    """Seconds that whoever reports an incident gives the leader, as both know from the ledger (rule L2)."""
    return max(SUSPICION_SECONDS, SUSPICION_FACTOR * ledger.counters.worst_seen)


def head_patience(ledger: Ledger) -> float:
    """Seconds from the newest entry on to show that it was seen: that the run was resumed, nodes learn by a
    heartbeat."""
    return ledger.settings.timing.lost_after if isinstance(ledger.head.body, Resume) else patience(ledger)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the failure policies said about the incident of one round; ``verdict`` is None while they think."""

    round: int
    verdict: Verdict | None = None


@dataclass(frozen=True, kw_only=True)
class LeaderView:
    """What the leader decides from. Instants are its own monotonic clock, in seconds."""

    ledger: Ledger
    watch: Watch
    now: float
    """When the roster was looked at: what has come since then, nobody has seen, and nobody is judged for it."""
    judgement: Judgement | None = None
    may_forget: bool = False
    """Whether the store can come back without its last entries (rule S3)."""

    @property
    def agreement(self) -> Agreement:
        """The run's settings."""
        return self.ledger.settings.agreement

    @property
    def timing(self) -> Timing:
        """The run's durations."""
        return self.ledger.settings.timing

    def has_asked_policies(self, number: int) -> bool:
        """Whether the policies were asked about round ``number``."""
        return self.judgement is not None and self.judgement.round == number

    def verdict(self, number: int) -> Verdict | None:
        """What they said of it; None when they were not asked, or still think."""
        return self.judgement.verdict if self.judgement is not None and self.has_asked_policies(number) else None

    @property
    def age(self) -> float:
        """Seconds since the run was opened, as its ledger counts them."""
        return self.ledger.head.age + max(0.0, self.now - self.ledger.head_at)

    @cached_property
    def hosts(self) -> frozenset[str]:
        """The ids of the hosts that have a row."""
        return frozenset(node.row.info.host_id for node in self.watch.nodes.values() if node.listed)

    # One node --------------------------------------------------------------------------------------------------------

    def get(self, node_id: str) -> NodeView | None:
        """The node view of a node; None for one without a row."""
        return self.watch.get(node_id)

    def is_lost(self, node_id: str) -> bool:
        """Whether a node is lost."""
        return is_lost(self.watch, node_id, self.timing, self.now)

    def is_proved_gone(self, node: NodeView) -> bool:
        """Whether a node is proved to be gone, with its last process (rule S8)."""
        return is_proved_gone(self.watch, node, self.timing, self.now)

    def is_leaving(self, node_id: str) -> bool:
        """Whether a node has said that it goes away; the ledger may know it of one whose row the store has lost."""
        node, over = self.get(node_id), self.ledger.over
        return (node is not None and node.row.leaving) or (over is not None and node_id in over.left)

    def is_running(self, node_id: str) -> bool:
        """Whether a node has workers, by its own word."""
        node = self.get(node_id)
        return node is not None and node.row.phase is Phase.RUNNING

    def has_finished(self, current: Round, node_id: str) -> bool:
        """Whether every worker of a node exited with 0; this stands even when the node is lost (rule L7)."""
        node = self.get(node_id)
        return node is not None and node.row.phase is Phase.FINISHED and node.row.round == current.number

    def is_silent_old_leader(self, node_id: str) -> bool:
        """Whether a node is the old leader, deposed for its silence about an incident, and still silent.

        What it says of an older epoch shows neither.
        """
        old, node, leader = self.watch.deposed, self.get(node_id), self.ledger.head.anchors.leader
        if old is None or not old.unanswered or old.node_id != node_id:
            return False
        return node is None or (node.row.epoch == self.ledger.head.epoch and node.row.head < leader)

    def member_suspected_at(self, node_id: str) -> float:
        """When a member that has not shown that it saw the HALT is suspected (rule L2), for what follows that HALT.

        Who has had its second already has a last chance, which a living agent takes in milliseconds: the old leader
        that was deposed for its silence, and whoever was silent about the ROUND that was halted for it. That is not
        known of who has yet to learn that the run was resumed.
        """
        ledger, at = self.ledger, self.ledger.head.anchors
        node = self.get(node_id)
        deposed = at.halt == at.leader + 1 and self.is_silent_old_leader(node_id)
        unseen = ledger.halt is not None and ledger.halt.reason is HaltReason.UNSEEN
        silent = node is not None and node.row.epoch == ledger.head.epoch and node.row.head < at.latest
        if deposed or (unseen and silent):
            return ledger.halt_at + max(LAST_CHANCE_SECONDS, SUSPICION_FACTOR * ledger.counters.worst_seen)
        return self.members_suspected_at

    @property
    def members_suspected_at(self) -> float:
        """When members that have not shown that they saw the newest ROUND or HALT are suspected (rule L2).

        Where the leader was cut off, others were, too, and have a full period to be back.
        """
        return max(self.answered_at + head_patience(self.ledger), self.watch.gap_at + self.timing.lost_after)

    @cached_property
    def answered_at(self) -> float:
        """When a member last showed that it has read on, up to the newest ROUND or HALT or further; at first, that one.

        As long as answers come in, it is the store or the network that is busy with so many, and nobody is silent.
        """
        ledger = self.ledger
        if ledger.round is None:
            return ledger.opened_at
        at, index = (
            (ledger.round_at, ledger.head.anchors.latest)
            if ledger.halt is None
            else (ledger.halt_at, ledger.head.anchors.halt)
        )
        return max([at, *(node.seen_at for node in self.node_views(ledger.round) if node.row.head >= index)])

    # Several nodes ---------------------------------------------------------------------------------------------------

    def node_views(self, current: Round) -> list[NodeView]:
        """The members of a round that have a row, in rank order."""
        return [node for member in current.members if (node := self.get(member.node_id)) is not None]

    def incidents(self, current: Round) -> list[Incident]:
        """What the members report of a round, the first cause first (``incidents.by_cause``)."""
        found = [node.row.incident for node in self.node_views(current) if node.row.incident is not None]
        return sorted((i for i in found if i.round == current.number), key=by_cause)

    def cause_known_at(self, current: Round) -> float:
        """Until when a round with incidents waits for one that does not follow from another; -inf where it has one.

        The peers of a killed worker may report before its own node does, and the policies are to judge the cause.
        """
        incidents = self.incidents(current)
        if not follows_peer_loss(incidents[0]) or len(incidents) == len(current.members):
            return -math.inf
        told = [(node.row.incident, node.reported_at) for node in self.node_views(current)]
        reported_at = min(at for incident, at in told if incident is not None and incident.round == current.number)
        return CAUSE_PATIENCE_SECONDS + reported_at

    def members_behind(self, current: Round, index: int) -> list[str]:
        """Members that have not shown that they saw ledger entry ``index``; who is leaving need not."""
        return [node.node_id for node in self.node_views(current) if node.row.head < index and not node.row.leaving]

    def suspectable_members(self, current: Round, index: int) -> list[str]:
        """The same, as far as rule L2 may suspect them: not whose row the store has lost, with what it said."""
        listed = {node.node_id for node in self.node_views(current) if node.listed}
        return [node_id for node_id in self.members_behind(current, index) if node_id in listed]

    def newcomers(self) -> list[NodeView]:
        """Those that wait, without bad hosts where members are enough."""
        members = self.ledger.round.members if self.ledger.round is not None else ()
        known = [node for member in members if (node := self.get(member.node_id)) is not None]
        return self.drop_bad_hosts(self.waiting_nodes(), known, len(members) - len(known))

    def waiting_nodes(self) -> list[NodeView]:
        """Living nodes that wait for a slot and have seen the newest OPEN or LEADER (rule S7), in order of arrival.

        A row that is gone was taken out by its node, or lost with the store; in that case the node will enter it again.
        """
        ledger = self.ledger
        members = ledger.round.group_ranks if ledger.round is not None else {}
        waiting = [
            node
            for node in self.watch.nodes.values()
            if node.row.phase is Phase.WAITING
            and node.listed
            and node.row.run == ledger.head.run
            and node.row.head >= ledger.head.anchors.leader
            and node.row.offer is not None
            and not node.row.leaving
            and node.node_id not in members
            and not self.is_lost(node.node_id)
        ]
        staying = [node for node_id in members if (node := self.get(node_id)) and not self._is_going(node_id)]
        return drop_duplicate_ranks(staying, waiting)

    def _is_going(self, node_id: str) -> bool:
        return self.is_lost(node_id) or self.is_leaving(node_id)

    def drop_bad_hosts(
        self, nodes: list[NodeView], staying: Sequence[NodeView] = (), unknown: int = 0
    ) -> list[NodeView]:
        """Leave out hosts that a policy excluded or that were lost too often, while the rest suffice (rule L4).

        Args:
            nodes: Whom to choose from.
            staying: Who is in the round anyway; a host that is good enough for them is for others.
            unknown: How many others are, of whom nothing is known.
        """
        bad = self.ledger.counters.bad_hosts() - {node.row.info.host_id for node in staying}
        good = [node for node in nodes if node.row.info.host_id not in bad]
        return good if len(good) + len(staying) + unknown >= self.agreement.min_nodes else nodes

    def has_room(self, current: Round) -> bool:
        """Whether a node waits that the round has a place for."""
        return len(current.members) < self.agreement.max_nodes and bool(self.newcomers())

    # For people and timers -------------------------------------------------------------------------------------------

    def describe_nodes(self, node_ids: Iterable[str]) -> str:
        """The nodes' hosts, as far as known: the first eight, and how many others."""
        return list_names(map(self._describe_node, node_ids)) or "nobody"

    def _describe_node(self, node_id: str) -> str:
        node = self.get(node_id)
        if node is not None:
            return str(node.row.info)
        host = None if self.ledger.round is None else self.ledger.round.host_of(node_id)
        return host or node_id

    def silence_deadlines(self, nodes: Iterable[NodeView]) -> list[float]:
        """When each of these would be lost, if nothing more is heard of it."""
        return [silence_deadline(self.watch, node, self.timing) for node in nodes]

    def next_look_at(self, *deadlines: float, nodes: Iterable[NodeView] = ()) -> float | None:
        """The next instant at which something may have changed: a deadline, or a silence that becomes a loss."""
        members = self.ledger.round.members if self.ledger.round is not None else ()
        missing = [self.watch.began_at + self.timing.lost_after for m in members if self.get(m.node_id) is None]
        return min((at for at in (*deadlines, *self.silence_deadlines(nodes), *missing) if at > self.now), default=None)


def drop_duplicate_ranks(first: Sequence[NodeView], then: Iterable[NodeView]) -> list[NodeView]:
    """Those of ``then`` whose node rank, given by hand, nobody of ``first`` or before them has."""
    taken, found = {node.row.info.node_rank for node in first} - {None}, []
    for node in then:
        if (rank := node.row.info.node_rank) not in taken:
            found.append(node)
            taken |= {rank} - {None}
    return found


def sort_by_rank(nodes: Iterable[NodeView]) -> list[NodeView]:
    """The nodes in the order of the ranks that were given by hand; as they are where none were."""
    return sorted(nodes, key=lambda node: math.inf if node.row.info.node_rank is None else node.row.info.node_rank)
